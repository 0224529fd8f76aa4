# SPDX-License-Identifier: Apache-2.0
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
