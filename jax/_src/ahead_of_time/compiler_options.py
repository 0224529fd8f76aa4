# SPDX-License-Identifier: Apache-2.0
"""Compiler options are a dictionary, also where an object is given (jax#24869).

`jax.jit` and `Lowered.compile` take XLA's options by their names. Whoever gives
them the runtime's CompileOptions, which JAX makes of them, was told that it has
no attribute 'items'.

Cost: one look for an attribute where options are given.
"""
from __future__ import annotations

from typing import Any

from jax._src.mend import pages


def check(function: str, options: Any) -> None:
  """Refuses compiler options that aren't given by their names.

  Args:
    function: the name of the public function.
    options: its ``compiler_options`` argument.

  Raises:
    TypeError: `options` is no dictionary.
  """
  if options is None or hasattr(options, 'items'):
    return
  raise TypeError(
      f'{function}: expected compiler_options to be None or a dictionary from'
      f' names of XLA options to their values, got {type(options).__name__}.'
      ' Pass each option by its name, for example'
      ' compiler_options={"xla_embed_ir_in_executable": True}; JAX makes the'
      ' CompileOptions, with the devices that it compiles for.' +
      pages.see('ahead_of_time.md#an-executable'))
