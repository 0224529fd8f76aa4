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
"""The gradient of device_put in shard_map, without jit."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def device_put():
  """the gradient of device_put by a replicated argument, without jit"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  f = shard_map(lambda x, w: x * jax.device_put(w), mesh=mesh,
                in_specs=(P("x"), P()), out_specs=P("x"))
  x = np.arange(4, dtype=np.float32)
  try:
    got = jax.grad(lambda w: jnp.sum(f(x, w)))(np.float32(2.))
  except (ValueError, NotImplementedError) as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  assert got == 6., got
  return "the sum over devices, 6"
