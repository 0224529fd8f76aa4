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
"""What __array_namespace_info__()'s dtype queries refuse (jax#27606)."""
import jax.numpy as jnp

REPORT = "jax#27606"


def unknown_kind():
  """dtypes(kind="decimal") is an error that names the valid kinds"""
  try:
    got = jnp.__array_namespace_info__().dtypes(kind="decimal")
  except KeyError as e:
    raise AssertionError(f"KeyError: {e}") from e
  except ValueError as e:
    assert "real floating" in str(e), f"ValueError: {e}"
    return "ValueError, with the valid kinds"
  raise AssertionError(f"accepted, giving {sorted(got)}")


def no_device():
  """default_dtypes(device="moon") is a TypeError"""
  try:
    got = jnp.__array_namespace_info__().default_dtypes(device="moon")
  except TypeError as e:
    assert "device" in str(e), f"TypeError: {e}"
    return "TypeError"
  raise AssertionError(f"accepted, giving {sorted(got)}")
