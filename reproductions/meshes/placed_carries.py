# SPDX-License-Identifier: Apache-2.0
"""A scan whose NumPy carry comes to lie on an Explicit axis (jax#29637)."""
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import numpy as np

REPORT = "jax#29637"


def carry_from_numpy():
  """a scan from a NumPy array, in a partly manual shard_map"""
  mesh = jax.make_mesh((2, 2), ("x", "y"),
                       axis_types=(jax.sharding.AxisType.Explicit,) * 2)
  rows = np.arange(32, dtype=np.float32).reshape(8, 4)

  def total(a):
    zeros = np.zeros(4, np.float32)
    return lax.scan(lambda c, r: (c + r, None), zeros, a)[0][None]
  f = jax.shard_map(total, mesh=mesh, in_specs=P("x"), out_specs=P("x"),
                    axis_names={"x"})
  try:
    out = jax.jit(f)(jax.device_put(rows, NamedSharding(mesh, P("x", "y"))))
  except TypeError as e:
    raise AssertionError(f"TypeError: {str(e)[:100]}") from e
  want = np.stack([rows[:4].sum(0), rows[4:].sum(0)])
  assert jnp.allclose(out, want), out
  return str(out.sharding.spec)
