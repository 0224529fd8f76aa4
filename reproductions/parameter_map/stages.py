# SPDX-License-Identifier: Apache-2.0
"""Which argument became which HLO parameter (pytorch/xla#8794)."""

import re

import jax
import jax.numpy as jnp
import numpy as np

REPORT = "pytorch/xla#8794"


def _lowered():
  x = np.arange(4, dtype=np.float32)
  loss = lambda a, b, c: jnp.sum(a + c ** 2)
  return jax.jit(loss).lower(x, x, x)


def parameters_are_told():
  """Lowered says which arguments became parameters"""
  lowered = _lowered()
  header = re.search(r"@main\((.*?)\) ->", lowered.as_text()).group(1)
  number = header.count("%arg")
  assert hasattr(lowered, "parameter_map"), (
      f"3 arguments, {number} parameters, and nothing public says which")
  paths = [p.path for p in lowered.parameter_map]
  assert paths == ["args[0]", "args[2]"], f"got {paths}"
  return f"{number} parameters: {', '.join(paths)}"


def compiled_tells_too():
  """Compiled says which arguments became parameters"""
  compiled = _lowered().compile()
  assert hasattr(compiled, "kept_var_idx"), (
      "nothing public says which of 3 arguments the executable takes")
  assert compiled.kept_var_idx == (0, 2), f"got {compiled.kept_var_idx}"
  return f"kept_var_idx = {compiled.kept_var_idx}"


def values_to_feed():
  """Lowered turns arguments into the buffers to feed"""
  lowered = _lowered()
  x, y, z = (np.full(4, i, np.float32) for i in range(3))
  assert hasattr(lowered, "parameter_values"), (
      "nothing public picks the values to feed from a function's arguments")
  values = lowered.parameter_values(x, y, z)
  assert len(values) == 2 and values[0] is x and values[1] is z, f"got {values}"
  return "2 of 3 arrays are handed over"
