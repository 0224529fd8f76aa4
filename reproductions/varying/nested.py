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
"""A shard_map over one axis inside of one over another."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: nested"


def nested_gradient():
  """the gradient of a shard_map inside of a shard_map"""
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
  inner = jax.shard_map(jnp.multiply, axis_names={"y"},
                        in_specs=(P(), P("y")), out_specs=P("y"))
  outer = jax.shard_map(lambda a, b: inner(a, b), mesh=mesh, axis_names={"x"},
                        in_specs=(P("x"), P()), out_specs=P("x"))
  a, b = np.ones((4, 3), np.float32), np.ones((4, 3), np.float32)
  try:
    got = jax.jit(jax.grad(lambda a, b: outer(a, b).sum()))(a, b)
  except ValueError as e:
    raise AssertionError(f"refused: {str(e).splitlines()[1][:70]}") from e
  assert np.allclose(got, 2.), got
  return "each device's part is counted"
