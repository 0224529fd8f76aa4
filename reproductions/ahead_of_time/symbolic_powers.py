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
"""A shape with a large power, as a file may hold."""
import time

REPORT = "jax#38020"


def large_power():
  """symbolic_shape("a^300000")"""
  from jax import export
  start = time.perf_counter()
  shape = export.symbolic_shape("a^300000")
  took = time.perf_counter() - start
  assert str(shape[0]) == "a^300000", shape
  assert took < 1, f"took {took:.0f} seconds"
  return f"took {took:.1f} seconds"
