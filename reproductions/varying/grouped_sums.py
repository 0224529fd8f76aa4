# SPDX-License-Identifier: Apache-2.0
"""psum and pmean within groups of devices, in shard_map."""

import numpy as np

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

REPORT = "shard_map: axis_index_groups"


def _per_device(f, x):
  shard_map = getattr(jax, "shard_map", None)
  if shard_map is None:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  return np.asarray(shard_map(f, mesh=mesh, in_specs=P("x"),
                              out_specs=P("x"))(x))


def psum_within_groups():
  """lax.psum takes axis_index_groups"""
  x = np.array([1., 2., 3., 4.], np.float32)
  out = _per_device(
      lambda x: lax.psum(x, "x", axis_index_groups=[[0, 2], [1, 3]]), x)
  np.testing.assert_allclose(out, [4, 6, 4, 6])
  return str(out)


def pmean_within_groups():
  """lax.pmean takes axis_index_groups, of different sizes too"""
  x = np.array([1., 2., 3., 5.], np.float32)
  out = _per_device(
      lambda x: lax.pmean(x, "x", axis_index_groups=[[0, 1, 2], [3]]), x)
  np.testing.assert_allclose(out, [2, 2, 2, 5])
  return str(out)
