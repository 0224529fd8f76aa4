# SPDX-License-Identifier: Apache-2.0
"""A shift along an automatic axis in a branch that some devices take."""

import numpy as np

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

REPORT = "jax#40823"


def roll_in_a_branch():
  """jnp.roll along automatic y in a branch that some devices along x take"""
  shard_map, options = getattr(jax, "shard_map", None), {"axis_names": {"x"}}
  if shard_map is None:
    from jax.experimental.shard_map import shard_map
    options = {"auto": frozenset(["y"])}
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))

  def f(x):
    return lax.cond(lax.axis_index("x") == 0, lambda x: jnp.roll(x, 1, 1),
                    lambda x: 0. * x - 1., x)

  x = jax.device_put(np.arange(8, dtype=np.float32).reshape(2, 4),
                     NamedSharding(mesh, P("x", "y")))
  f = jax.jit(shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"),
                        **options)).lower(x).compile()
  # Run, it would wait for devices that never come.
  assert "collective-permute" not in f.as_text(), "waits for all devices"
  out = np.asarray(f(x))
  np.testing.assert_allclose(out, [[3, 0, 1, 2], [-1] * 4])
  return str(out)
