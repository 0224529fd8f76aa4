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
"""Derivatives in shard_map with check_rep=True."""
import unittest

import jax
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


def hessian():
  """jax.hessian runs in shard_map with the check on"""
  f = _shard_map(lambda x: jax.hessian(lambda y: jnp.sum(y ** 3))(x),
                 P('i'), P('i'))
  try:
    h = f(jnp.arange(4.))
  except TypeError as e:
    raise AssertionError(str(e)[:60]) from None
  assert np.allclose(h, [[0, 0], [0, 6], [12, 0], [0, 18]]), str(h)
  return "the right values"
