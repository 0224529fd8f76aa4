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
"""Shardings of an exported function, on a mesh with another axis name."""
import jax
from jax import sharding as js
import numpy as np

REPORT = "jax#21314"


def other_name():
  """in_shardings_jax(mesh) of a mesh whose axis has another name"""
  from jax import export
  devices = np.array(jax.devices())
  x = js.NamedSharding(js.Mesh(devices, ("x",)), js.PartitionSpec("x"))
  exported = export.export(jax.jit(lambda v: v * 2, in_shardings=x))(
      np.arange(float(len(devices))))
  try:
    found, = exported.in_shardings_jax(js.Mesh(devices, ("a",)))
  except ValueError as e:
    raise AssertionError(str(e)[:90]) from e
  assert found.spec == js.PartitionSpec("a"), found
  return f"{found.spec}"
