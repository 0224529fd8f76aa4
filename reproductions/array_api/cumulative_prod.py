# SPDX-License-Identifier: Apache-2.0
"""Whether the product of small integers has room."""
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27606"


def cumulative_prod():
  """cumulative_prod of int8 is as wide as prod of it"""
  got = jnp.cumulative_prod(jnp.array([100, 2], jnp.int8))
  np.testing.assert_array_equal(got, [100, 200])
  return str(got.dtype)
