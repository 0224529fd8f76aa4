# SPDX-License-Identifier: Apache-2.0
"""Elements along the last axis, as the standard writes it."""
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27606"


def take_along_axis():
  """take_along_axis takes along the last axis by default"""
  got = jnp.take_along_axis(jnp.array([[3, 1, 2]]), jnp.array([[1, 2]]))
  np.testing.assert_array_equal(got, [[1, 2]])
  return str(got.tolist())
