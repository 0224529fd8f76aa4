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
"""Elements along the last axis, as the standard writes it."""
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27606"


def take_along_axis():
  """take_along_axis takes along the last axis by default"""
  got = jnp.take_along_axis(jnp.array([[3, 1, 2]]), jnp.array([[1, 2]]))
  np.testing.assert_array_equal(got, [[1, 2]])
  return str(got.tolist())
