# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Reductions over groups of devices, check_rep=True."""
import unittest

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  if jax.__version_info__ >= (0, 6):
    raise unittest.SkipTest("check_rep's rules are of the 0.5 line")
  from jax.experimental.shard_map import shard_map
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


P = jax.sharding.PartitionSpec


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
