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
"""Whether the product of small integers has room."""
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27606"


def cumulative_prod():
  """cumulative_prod of int8 is as wide as prod of it"""
  got = jnp.cumulative_prod(jnp.array([100, 2], jnp.int8))
  np.testing.assert_array_equal(got, [100, 200])
  return str(got.dtype)
