# SPDX-License-Identifier: Apache-2.0
"""Linear solves and roots in shard_map."""
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: solves"

_MESH = Mesh(np.array(jax.devices()[:4]), ("x",))
_A = np.eye(3, dtype=np.float32) * np.arange(1, 5, dtype=np.float32)[
    :, None, None]
_B = np.arange(1, 4, dtype=np.float32)


def _solve(a, b):
  divide = lambda _, b: b / jnp.diagonal(a)
  return lax.custom_linear_solve(lambda x: a @ x, b, divide, divide)


def linear_solve():
  """custom_linear_solve with a matrix per device and a shared vector"""
  f = jax.jit(shard_map(lambda a, b: _solve(a[0], b)[None], mesh=_MESH,
                        in_specs=(P("x"), P()), out_specs=P("x")))
  want = _B / np.arange(1, 5, dtype=np.float32)[:, None]
  assert np.allclose(f(_A, _B), want)
  grad = jax.grad(lambda b: jnp.sum(f(_A, b)))(_B)
  want = np.full(3, 1 + 1 / 2 + 1 / 3 + 1 / 4, np.float32)
  assert np.allclose(grad, want), f"gradient {want} is right, got {grad}"
  return "each device's own solution, and the right gradient"


def root():
  """The gradient through custom_root with a parameter per device"""
  cube_root = lambda a: lax.custom_root(
      lambda y: y ** 3 - a, np.float32(1.),
      lambda f, y: lax.stop_gradient(jnp.cbrt(a)) + 0 * y,
      lambda g, y: y / g(np.float32(1.)))
  f = jax.jit(shard_map(lambda a: cube_root(a[0])[None], mesh=_MESH,
                        in_specs=P("x"), out_specs=P("x")))
  a = np.arange(1, 5, dtype=np.float32)
  grad = jax.grad(lambda a: jnp.sum(f(a)))(a)
  assert np.allclose(grad, np.cbrt(a) ** -2 / 3, rtol=1e-4)
  return "as the derivative of the cube root"
