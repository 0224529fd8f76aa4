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
"""Whether a device= that is none is refused with what a device is."""
import jax.numpy as jnp

REPORT = "jax#27606"


def _refused(function):
  try:
    function()
  except TypeError as e:
    assert "expected device to be" in str(e), str(e)
    return str(e)[:70]
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:150]}") from e
  raise AssertionError("accepted")


def zeros():
  """zeros(3, device="cpu") says what a device is"""
  return _refused(lambda: jnp.zeros(3, device="cpu"))


def asarray():
  """asarray([1.], device="cpu") says what a device is"""
  return _refused(lambda: jnp.asarray([1.], device="cpu"))
