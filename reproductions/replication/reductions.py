# SPDX-License-Identifier: Apache-2.0
"""Reductions over groups of devices, check_rep=True."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def pmax_over_groups_varies():
  """pmax over groups of devices is not taken to be the same everywhere"""
  mesh = Mesh(np.array(jax.devices()[:2]), ('i',))
  f = shard_map(lambda x: lax.pmax(x[0], 'i', axis_index_groups=[[0], [1]]),
                mesh=mesh, in_specs=P('i'), out_specs=P())
  try:
    out = f(jnp.arange(2.))
  except ValueError as e:
    assert "out_specs" in str(e), f"ValueError: {e}"
    return "out_specs=P() refused"
  raise AssertionError(f"out_specs=P() accepted, {out} for [0, 1]")
