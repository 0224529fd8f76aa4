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
"""Whether empty_like can be traced (jax#27606)."""
import jax
import jax.numpy as jnp

REPORT = "jax#27606"


def _traced(function):
  try:
    return f"an array of shape {jax.jit(function)().shape}"
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:150]}") from e


def with_device():
  """empty_like(x, device=d) can be traced"""
  x, d = jnp.arange(8.), jax.devices()[0]
  return _traced(lambda: jnp.empty_like(x, device=d))


def of_committed_array():
  """empty_like(x) of a committed array x can be traced"""
  x = jax.device_put(jnp.arange(8.), jax.devices()[1])
  return _traced(lambda: jnp.empty_like(x))
