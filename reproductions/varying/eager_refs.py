# SPDX-License-Identifier: Apache-2.0
"""jax#36000: refs in a shard_map that isn't under jax.jit."""

import jax
from jax._src import core
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

REPORT = "jax#36000"


def ref_without_jit():
  """a ref may be made in a shard_map that isn't under jit"""
  new_ref = (getattr(core, "new_ref", None) or getattr(core, "array_ref", None)
             or core.mutable_array)
  def f(x):
    ref = new_ref(x)
    ref[...] += x
    return ref[...]
  mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
  run = jax.shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
  try:
    got = run(jnp.arange(4.))
  except (AssertionError, NotImplementedError, ValueError) as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  assert np.allclose(got, [0., 2., 4., 6.]), f"got {got}"
  return "as under jit"
