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
"""lax.composite in a function that is exported for two platforms."""
import jax
import numpy as np

REPORT = "jax#40486"


def two_platforms():
  """export of a lax.composite for two platforms"""
  from jax import export
  f = jax.lax.composite(lambda x: x + 1, "my.increment")
  x = np.arange(3, dtype=np.float32)
  try:
    exported = export.export(jax.jit(f), platforms=("cpu", "tpu"))(x)
  except ValueError as e:
    raise AssertionError(str(e)[:90]) from e
  out = exported.call(x)
  assert np.array_equal(out, x + 1), out
  return f"{out}"
