# SPDX-License-Identifier: Apache-2.0
"""Whether complex functions are what they should be at infinities and nan."""
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27606"


def _parts(got, real, imag):
  got = np.asarray(got)
  np.testing.assert_array_equal([got.real, got.imag], [real, imag])
  return str(got)


def log1p():
  """log1p(nan + inf j) is inf + nan j, as in the standard"""
  return _parts(jnp.log1p(complex(np.nan, np.inf)), np.inf, np.nan)


def tanh():
  """tanh(nan j) is nan j, as in NumPy"""
  return _parts(jnp.tanh(complex(0, np.nan)), 0, np.nan)


def arctan():
  """arctan(nan + 1j) is nan in its real part, not -pi/2"""
  return _parts(jnp.atan(complex(np.nan, 1)), np.nan, np.nan)
