# SPDX-License-Identifier: Apache-2.0
"""Searches in a table whose size is known only when it is called."""
import jax
from jax import export
import jax.numpy as jnp
import numpy as np

REPORT = "jax#36766"


def searchsorted():
  """searchsorted of a table of a symbolic size, exported"""
  sizes = export.symbolic_shape("a, b")
  search = export.export(jax.jit(jnp.searchsorted))(
      *[jax.ShapeDtypeStruct((n,), np.float32) for n in sizes]).call
  table, queries = np.float32([1, 2, 4]), np.float32([0, 3, 4, 9])
  np.testing.assert_array_equal(search(table, queries), [0, 2, 2, 3])
  np.testing.assert_array_equal(search(table[:1], queries), [0, 1, 1, 1])
  return "found"


def interp():
  """interp over a table of a symbolic size, exported (jax#22489)"""
  sizes = export.symbolic_shape("b, a, a")
  f = export.export(jax.jit(jnp.interp))(
      *[jax.ShapeDtypeStruct((n,), np.float32) for n in sizes]).call
  got = f(np.float32([.5]), np.float32([0, 1, 2]), np.float32([0, 6, 0]))
  np.testing.assert_allclose(got, [3])
  return str(got)
