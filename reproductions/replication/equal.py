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
"""What all_gather returns, in shard_map with check_rep=True."""
import unittest

import jax
from jax import lax
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  if jax.__version_info__ >= (0, 6):
    raise unittest.SkipTest("check_rep's rules are of the 0.5 line")
  from jax.experimental.shard_map import shard_map
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


P = jax.sharding.PartitionSpec


def all_gather_is_the_same_everywhere():
  """the result of all_gather may have out_specs=P()"""
  f = _shard_map(lambda x: lax.all_gather(x, 'i', tiled=True), P('i'), P())
  x = np.arange(8., dtype=np.float32)
  try:
    y = jax.jit(f)(x)
  except ValueError as e:
    raise AssertionError(str(e)[:120]) from None
  assert np.array_equal(y, x), str(y)
  return "accepted, and gathered"
