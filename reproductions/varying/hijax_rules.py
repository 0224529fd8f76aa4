# SPDX-License-Identifier: Apache-2.0
"""A rule of custom_vjp3 in a branch of a shard_map."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def custom_vjp3_in_a_branch():
  """The gradient through a branch that has a custom_vjp3 function is right"""
  jax.config.update("jax_custom_vjp3", True)
  f = jax.custom_vjp(lambda x, w: jnp.sin(x) * w)
  f.defvjp(lambda x, w: (f(x, w), (x, w)),
           lambda r, g: (g * jnp.cos(r[0]) * r[1], g * jnp.sin(r[0])))

  def gradient(x, w):
    branch = lambda w: lax.cond(x[0] > 1., lambda: f(x[0], w), lambda: w)
    return jax.grad(branch)(w)

  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  x = np.arange(4, dtype=np.float32)
  g = jax.shard_map(gradient, mesh=mesh, in_specs=(P("x"), P()), out_specs=P())
  got, want = jax.jit(g)(x, 2.), 2. + np.sin(2.) + np.sin(3.)
  assert np.allclose(got, want), f"expected {want}, got {got}"
  return f"the sum of the devices' gradients, {want:.3f}"
