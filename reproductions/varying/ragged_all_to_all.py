# SPDX-License-Identifier: Apache-2.0
"""A ragged_all_to_all into zeros, declared the same on all devices."""
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def ragged_all_to_all():
  """what each device gets from the others, by out_specs=P()"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
  ones = np.ones(2, np.int32)

  def exchange(x):
    places = jnp.full(2, lax.axis_index("x"), jnp.int32)
    return lax.ragged_all_to_all(x, jnp.zeros(2), np.arange(2, dtype=np.int32),
                                 ones, places, ones, axis_name="x")

  f = shard_map(exchange, mesh=mesh, in_specs=P("x"), out_specs=P())
  try:  # CPUs can trace it
    jax.make_jaxpr(f)(np.arange(4, dtype=np.float32))
  except ValueError as e:
    assert "out_specs" in str(e), f"refused: {str(e)[:50]}"
    return "refused: each device gets its own"
  raise AssertionError("accepted: each device gets its own")
