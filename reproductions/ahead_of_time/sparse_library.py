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
"""A tridiagonal solve, lowered for a GPU where there is none."""
import jax
import numpy as np

REPORT = "tridiagonal_solve for cuda"


def sparse_library():
  """tridiagonal_solve for cuda is lowered, or says what is missing"""
  d = np.ones(3, np.float32)
  traced = jax.jit(jax.lax.linalg.tridiagonal_solve).trace(
      d, d, d, d[:, None])
  try:
    traced.lower(lowering_platforms=("cuda",))
  except Exception as e:  # pylint: disable=broad-exception-caught
    assert "tridiagonal_solve: lowering for cuda expected" in str(e), repr(e)
    return "refused"
  return "lowered"
