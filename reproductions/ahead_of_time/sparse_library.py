# SPDX-License-Identifier: Apache-2.0
"""A tridiagonal solve, lowered for a GPU where there is none."""
import jax
import numpy as np

REPORT = "tridiagonal_solve for cuda"


def sparse_library():
  """tridiagonal_solve for cuda is lowered, or says what is missing"""
  d = np.ones(3, np.float32)
  traced = jax.jit(jax.lax.linalg.tridiagonal_solve).trace(
      d, d, d, d[:, None])
  try:
    traced.lower(lowering_platforms=("cuda",))
  except Exception as e:  # pylint: disable=broad-exception-caught
    assert "tridiagonal_solve: lowering for cuda expected" in str(e), repr(e)
    return "refused"
  return "lowered"
