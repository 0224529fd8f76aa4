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
"""The error about outputs that can't be shown to be replicated."""
import re

import jax
import numpy as np

REPORT = "jax#40823"


def error_says_where_an_output_became_varying():
  """the error about replicated out_specs names the line where it went wrong"""
  from jax.sharding import Mesh, PartitionSpec as P
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map

  def f(x):
    n = jax.lax.axis_index("x")
    return x.sum() + n

  mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
  g = jax.jit(shard_map(f, mesh=mesh, in_specs=P(), out_specs=P()))
  try:
    g(np.arange(4))
  except ValueError as e:
    found = re.search(r"varies over .* because of axis_index at ", str(e))
    assert found, "the message names no origin"
    return "axis_index is named, with its line"
  raise AssertionError("accepted")
