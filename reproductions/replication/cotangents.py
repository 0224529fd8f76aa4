# SPDX-License-Identifier: Apache-2.0
"""The gradient by one argument of a custom_vjp in shard_map, without jit."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def one_argument():
  """the gradient by one of two arguments of a custom_vjp, without jit"""
  from jax.experimental.shard_map import shard_map
  @jax.custom_vjp
  def scaled(x, w):
    return x * w
  scaled.defvjp(lambda x, w: (x * w, (x, w)),
                lambda r, ct: (ct * r[1], jnp.sum(ct * r[0])))
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  f = shard_map(scaled, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"))
  try:
    got = jax.grad(lambda x: jnp.sum(f(x, np.float32(3.))))(
        np.arange(4, dtype=np.float32))
  except Exception as e:  # pylint: disable=broad-exception-caught
    raise AssertionError(f"refused: {type(e).__name__}") from e
  assert (got == 3.).all(), got
  return "the other argument's value, 3"
