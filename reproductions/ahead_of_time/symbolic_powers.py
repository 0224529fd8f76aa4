# SPDX-License-Identifier: Apache-2.0
"""A shape with a large power, as a file may hold."""
import time

REPORT = "jax#38020"


def large_power():
  """symbolic_shape("a^300000")"""
  from jax import export
  start = time.perf_counter()
  shape = export.symbolic_shape("a^300000")
  took = time.perf_counter() - start
  assert str(shape[0]) == "a^300000", shape
  assert took < 1, f"took {took:.0f} seconds"
  return f"took {took:.1f} seconds"
