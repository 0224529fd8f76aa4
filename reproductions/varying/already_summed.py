# SPDX-License-Identifier: Apache-2.0
"""psum of a gradient that JAX has already summed over the devices."""

import warnings

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

REPORT = "netket#2228"


def _warnings_of(step):
  shard_map = getattr(jax, "shard_map", None)
  if shard_map is None:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  run = jax.jit(shard_map(step, mesh=mesh, in_specs=(P(), P("x")),
                          out_specs=P()))
  with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    run(jnp.ones(()), jnp.arange(4.))
  return [str(w.message) for w in found]


def psum_of_a_gradient():
  """psum of a gradient that is summed already warns"""
  def step(w, x):
    grad = jax.grad(lambda w: jnp.sum(w * x))(w)
    return lax.psum(grad, "x")

  said = _warnings_of(step)
  assert any("summed" in text for text in said), "four times the gradient"
  return "a warning, with both lines"


def pmean_of_a_gradient():
  """pmean of a gradient that is summed already warns"""
  def step(w, x):
    grad = jax.grad(lambda w: jnp.sum(w * x))(w)
    return lax.pmean(grad, "x")

  said = _warnings_of(step)
  assert any("summed" in text for text in said), "the sum, and no mean"
  return "a warning, with both lines"
