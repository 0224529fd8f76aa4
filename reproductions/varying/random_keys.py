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
"""Sampling by a key that all devices share."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REPORT = "jax#28193"


def _run(f, x, *shared, out=P("x")):
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  specs = (P("x"),) + (P(),) * len(shared)
  g = shard_map(f, mesh=mesh, in_specs=specs, out_specs=out)
  return np.asarray(jax.jit(g)(x, *shared))


def gamma_with_a_shared_key():
  """The refusal of random.gamma by a shared key says what to write"""
  key, a = jax.random.key_data(jax.random.key(0)), jnp.arange(1., 5.)
  draw = lambda a, k: jax.random.gamma(jax.random.wrap_key_data(k), a)
  try:
    _run(draw, a, key)
  except TypeError as e:
    assert "fold_in(key, jax.lax.axis_index" in str(e), str(e)
    return "fold_in(key, axis_index) or a cast of the key"
  raise AssertionError("correlated draws are not refused")
