# SPDX-License-Identifier: Apache-2.0
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
