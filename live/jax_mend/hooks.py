# SPDX-License-Identifier: Apache-2.0
"""The places at which releases of jax lower, compile and call programs.

They are alike from 0.5.1 to 0.12.0.1. Calls go through Python: the ways of C++
around it are closed.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any


def _modules(*names: str) -> list[Any]:
  return [importlib.import_module(f"jax._src.{name}") for name in names]


def hook(recorder: Any) -> None:
  """Has each lowering, compilation and call of a program told.

  Args:
    recorder: has `lowered`, `compiled` and `called`.
  """
  api, compiler, pjit, pxla, stages = _modules(
      "api", "compiler", "pjit", "interpreters.pxla", "stages")
  compile_ = compiler.compile_or_get_cached

  @functools.wraps(compile_)
  def compile_or_get_cached(backend: Any, module: Any, *args: Any,
                            **kwargs: Any) -> Any:
    executable = compile_(backend, module, *args, **kwargs)
    recorder.compiled(module, executable)
    return executable

  compiler.compile_or_get_cached = compile_or_get_cached
  call = pxla.ExecuteReplicated.__call__

  def called(self: Any, *args: Any) -> Any:
    return recorder.called(self.xla_executable, args,
                           lambda: call(self, *args))

  pxla.ExecuteReplicated.__call__ = called
  lower = stages.Lowered.__init__

  @functools.wraps(lower)
  def lowered(self: Any, *args: Any, **kwargs: Any) -> None:
    lower(self, *args, **kwargs)
    module = self.compiler_ir()
    recorder.lowered(lambda: str(module),
                     module.operation.attributes["sym_name"].value)

  stages.Lowered.__init__ = lowered
  nothing = lambda *args, **kwargs: None
  pjit._get_fastpath_data = nothing
  pxla.MeshExecutable.create_cpp_call = nothing
  if hasattr(api, "_PmapFastpathData"):  # before 0.10
    api._PmapFastpathData = nothing
