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
"""Big-endian numbers, as FITS and netCDF files hold them."""
import jax
import numpy as np

REPORT = "found in tests"


def from_a_callback():
  """make_array_from_callback of big-endian NumPy data"""
  data = np.array([1, 2, 3], ">f4")
  place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  try:
    out = jax.make_array_from_callback((3,), place, lambda i: data[i])
  except TypeError as e:
    return f"refused: {str(e)[:60]}"
  assert np.array_equal(out, data), f"{out} of {data}"
  return f"{out}"
