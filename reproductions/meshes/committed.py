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
"""A constraint to the device on which an array is already."""
import jax
import jax.numpy as jnp

REPORT = "with_sharding_constraint outside of jit"


def committed():
  """with_sharding_constraint commits an array to one device"""
  where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  x = jax.lax.with_sharding_constraint(jnp.ones(3), where)
  assert x.committed, "the array is uncommitted"
  return "committed"
