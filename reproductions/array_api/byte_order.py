# SPDX-License-Identifier: Apache-2.0
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
