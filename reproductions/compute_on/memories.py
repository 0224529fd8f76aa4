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
"""A state on the host, values on the device (jax#27825, jax#34041)."""

import jax
import jax.numpy as jnp
import numpy as np

REPORT = "jax#34041"


def _in_two_memories():
  space = jax.memory.Space
  state = jax.device_put(np.arange(4, dtype=np.float32), space.Host)
  return state, jax.device_put(np.ones(4, np.float32), space.Device), space


def gradients():
  """The gradient of an update of a state on the host, from the device"""
  state, step, space = _in_two_memories()
  def loss(state, step):
    new = state - jax.device_put(step, space.Host) * state
    return jnp.sum(jax.device_put(new, space.Device))
  found = jax.jit(jax.grad(loss, argnums=(0, 1)))(state, step)
  np.testing.assert_allclose(found[1], -np.arange(4.))
  return str(np.asarray(found[1]))
