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
"""Whether PRNG keys are put where device= says."""
import jax
import jax.numpy as jnp

REPORT = "jax#27606"


def _placed(function):
  device = jax.devices()[1]
  try:
    key = function(jax.random.key(0), device)
  except NotImplementedError as e:
    raise AssertionError(f"NotImplementedError: {e}") from e
  assert key.devices() == {device}, f"placed on {key.devices()}"
  return "placed there"


def zeros_like():
  """zeros_like(key, device=d) is on d"""
  return _placed(lambda key, d: jnp.zeros_like(key, device=d))


def asarray():
  """asarray(key, device=d) is on d"""
  return _placed(lambda key, d: jnp.asarray(key, device=d))


def to_device():
  """key.to_device(d) is on d"""
  return _placed(lambda key, d: key.to_device(d))
