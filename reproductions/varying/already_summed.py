# SPDX-License-Identifier: Apache-2.0
"""psum of a gradient that JAX has already summed over the devices."""

import warnings

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "netket#2228"


def _warns(reduction, otherwise):
  """`reduction` of the gradient warns; else the result is `otherwise`."""
  def step(w, x):
    grad = jax.grad(lambda w: jnp.sum(w * x))(w)
    return reduction(grad, "x")

  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  run = jax.jit(shard_map(step, mesh=mesh, in_specs=(P(), P("x")),
                          out_specs=P()))
  with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter("always")
    run(jnp.ones(()), jnp.arange(4.))
  assert any("summed" in str(w.message) for w in found), otherwise
  return "a warning, with both lines"


def psum_of_a_gradient():
  """psum of a gradient that is summed already warns"""
  return _warns(lax.psum, "four times the gradient")


def pmean_of_a_gradient():
  """pmean of a gradient that is summed already warns"""
  return _warns(lax.pmean, "the sum, and no mean")
