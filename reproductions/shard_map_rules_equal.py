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
REPORT = "jax#27664"


def all_gather_is_replicated():
  """The result of all_gather may have out_specs=P()"""
  import jax
  import numpy as np
  try:
    from jax.experimental.shard_map import shard_map
  except ImportError:
    from jax import shard_map
  import unittest
  if jax.__version_info__ >= (0, 6):
    raise unittest.SkipTest("rewrite types are those of 0.5.3")
  P = jax.sharding.PartitionSpec
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("i",))
  f = shard_map(lambda x: jax.lax.all_gather(x, "i", tiled=True), mesh=mesh,
                in_specs=P("i"), out_specs=P())
  x = np.arange(8., dtype="float32")
  try:
    y = jax.jit(f)(x)
  except ValueError as e:
    raise AssertionError(f"refused: {str(e)[:120]}") from None
  assert np.array_equal(y, x), f"got {y}"
  return "accepted, and gathered"
