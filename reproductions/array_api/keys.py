# SPDX-License-Identifier: Apache-2.0
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
