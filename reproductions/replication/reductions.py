# SPDX-License-Identifier: Apache-2.0
"""Reductions over groups of devices, check_rep=True."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  mesh = Mesh(np.array(jax.devices()[:2]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def pmax_over_groups_varies():
  """pmax over groups of devices is not taken to be the same everywhere"""
  f = _shard_map(
      lambda x: lax.pmax(x[0], 'i', axis_index_groups=[[0], [1]]), P('i'), P())
  try:
    out = f(jnp.arange(2.))
  except ValueError as e:
    assert "out_specs" in str(e), f"ValueError: {e}"
    return "out_specs=P() refused"
  raise AssertionError(f"out_specs=P() accepted, {out} for [0, 1]")
