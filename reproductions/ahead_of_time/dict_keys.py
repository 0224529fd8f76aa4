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
"""A dictionary with integer keys, exported (jax#32680)."""

import jax
import numpy as np

REPORT = "jax#32680"


def integer_keys():
  """An exported function of a dictionary with integer keys, serialized"""
  from jax import export
  layers = {0: np.ones(2, np.float32), 1: np.ones(2, np.float32)}
  exported = export.export(jax.jit(lambda d: d[0] + d[1]))(layers)
  out = export.deserialize(exported.serialize()).call(layers)
  np.testing.assert_array_equal(out, [2, 2])
  return "serialized, and called"
