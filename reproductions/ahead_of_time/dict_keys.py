# SPDX-License-Identifier: Apache-2.0
"""A dictionary with integer keys, exported (jax#32680)."""

import jax
import numpy as np

REPORT = "jax#32680"


def integer_keys():
  """An exported function of a dictionary with integer keys, serialized"""
  from jax import export
  layers = {0: np.ones(2, np.float32), 1: np.ones(2, np.float32)}
  exported = export.export(jax.jit(lambda d: d[0] + d[1]))(layers)
  out = export.deserialize(exported.serialize()).call(layers)
  np.testing.assert_array_equal(out, [2, 2])
  return "serialized, and called"
