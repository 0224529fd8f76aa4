# SPDX-License-Identifier: Apache-2.0
"""Records what a program compiles and what its calls return.

Runs in the process that `compare` starts, on a stock or a mended jax. A line of
JSON a fact goes to events.jsonl as it happens, so that of a program that hangs
or dies all is there up to that. `_hook` says once where releases compile and
call: these places are alike from 0.5.1 to 0.12.0.1. Calls go through Python
(the ways of C++ around it are closed), and each is waited for: that is the
cost, beside a sum over each result.
"""

from __future__ import annotations

from collections.abc import Callable
import faulthandler
import functools
import hashlib
import importlib
import json
import os
import re
import sys
import time
import traceback
import types
from typing import Any

from jax_mend import store, values

FOLDER = "JAX_MEND_RECORD"
_HERE = os.path.dirname(os.path.abspath(__file__))
# What differs from process to process: where a callback lies in memory.
_POINTER = re.compile(r'(backend_config = ")\d{6,}"|(descriptor = )\d{6,}')


class Recorder:
  """Writes what happens to a folder.

  Args:
    folder: has settings.json: "store", bytes; "other", a folder of values that
      needn't be kept; "wanted", those to keep, null for all; "limit", seconds;
      "evidence", whether to tell patches.
  """

  def __init__(self, folder: str):
    with open(os.path.join(folder, "settings.json"), encoding="utf-8") as file:
      self.settings: dict[str, Any] = json.load(file)
    self._folder = folder
    self._out = open(os.path.join(folder, "events.jsonl"), "w",
                     encoding="utf-8", buffering=1)
    self._stack = open(os.path.join(folder, "stacks.txt"), "w",
                       encoding="utf-8")
    self._numbers: dict[int, int] = {}  # of executables
    self._keep: list[Any] = []  # so that no other gets the number
    self._calls: list[int] = []
    self._store: values.Store | None = None
    self._libraries = [os.path.dirname(os.__file__), _HERE, store.root()]
    # The patches whose code ran since the last program, with the functions.
    self.touched: dict[str, dict[str, None]] = {}
    self.where = ""  # the test that runs, under pytest

  def say(self, what: str, **facts: Any) -> None:
    self._out.write(json.dumps({"what": what, **facts}) + "\n")

  def begin(self) -> None:
    """Watches how the program ends, and for how long it runs."""
    if self.settings["limit"]:
      faulthandler.dump_traceback_later(self.settings["limit"],
                                        file=self._stack)
    before = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
      self.say("error", **self.described(error))
      before(kind, error, trace)

    sys.excepthook = excepthook

  def described(self, error: BaseException) -> dict[str, Any]:
    """An error's type, first line and the user's own line."""
    lines = traceback.walk_tb(error.__traceback__)
    frames = [(frame.f_code.co_filename, number) for frame, number in lines]
    own = [f for f in frames if not self._is_library(f[0])]
    file, number = (own or frames or [("", 0)])[-1]
    text = str(error).strip().partition("\n")[0]
    return {"type": type(error).__name__, "text": text[:300],
            "line": f"{_shown(file)}:{number}" if file else ""}

  def _is_library(self, file: str) -> bool:
    return (file.startswith("<") or "site-packages" in file
            or "dist-packages" in file
            or any(file.startswith(f + os.sep) for f in self._libraries))

  def hook(self, jax: types.ModuleType) -> None:
    """Begins with the programs of a jax that has been imported."""
    source_info_util: Any = importlib.import_module(
        "jax._src.source_info_util")
    source_info_util.register_exclusion(_HERE + os.sep)
    self._libraries += [os.path.dirname(jax.__file__ or "")]
    self._store = values.Store(self._folder, self.settings["store"],
                               self.settings["other"],
                               self.settings["wanted"])
    self.touched.clear()
    _hook(self)

  def compiled(self, module: Any, executable: Any) -> None:
    """Tells a program: its name, the user's line, its text's hash."""
    text = _POINTER.sub(r"\1\2", str(module))
    name = module.operation.attributes["sym_name"].value
    number = len(self._calls)
    self._calls.append(0)
    self._numbers[id(executable)] = number
    self._keep.append(executable)
    self.say("program", number=number, name=re.sub(r"^jit__?", "", name),
             line=self._line(), test=self.where,
             code=hashlib.sha256(text.encode()).hexdigest()[:16],
             patches={p: [*f] for p, f in self.touched.items()})
    self.touched.clear()

  def _line(self) -> str:
    """The innermost line of the user's on the stack; else of any caller."""
    frame: Any = sys._getframe(2)
    while frame:
      if not self._is_library(frame.f_code.co_filename):
        return f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}"
      frame = frame.f_back
    return ""

  def called(self, executable: Any, call: Callable[[], Any]) -> Any:
    """Makes a call of a program, and tells what it returns."""
    number = self._numbers.get(id(executable))
    if number is None:  # compiled before, or loaded
      return call()
    at, self._calls[number] = self._calls[number], self._calls[number] + 1
    self.say("call", number=number, at=at)
    results = call()
    self.say("results", number=number, at=at,
             results=[self._told(r) for r in results])
    return results

  def _told(self, result: Any) -> list[list[Any]]:
    """[device, index, digest] of each part of a result in this process."""
    result = getattr(result, "_base_array", result)  # of random keys
    assert self._store is not None
    found = []
    for shard in getattr(result, "addressable_shards", ()):
      index = [[s.start or 0, s.stop] for s in shard.index]
      found.append([shard.device.id, index,
                    self._store.digest(shard.data.__array__())])
    return found


def _shown(file: str) -> str:
  near = os.path.relpath(file) if os.path.isabs(file) else file
  return file if near.startswith("..") else near


def _modules(*names: str) -> list[Any]:
  return [importlib.import_module(f"jax._src.{name}") for name in names]


def _hook(recorder: Recorder) -> None:
  """Has each compilation and each call of a program told."""
  api, compiler, pjit, pxla = _modules(
      "api", "compiler", "pjit", "interpreters.pxla")
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
    return recorder.called(self.xla_executable, lambda: call(self, *args))

  pxla.ExecuteReplicated.__call__ = called
  nothing = lambda *args, **kwargs: None
  pjit._get_fastpath_data = nothing
  pxla.MeshExecutable.create_cpp_call = nothing
  if hasattr(api, "_PmapFastpathData"):  # before 0.10
    api._PmapFastpathData = nothing


class _Waiting:
  """Stands on `sys.meta_path` until jax is asked for; then it is hooked."""

  def __init__(self, recorder: Recorder):
    self._recorder = recorder
    self._asked = False

  def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
    if name != "jax" or self._asked:
      return None
    from jax_mend.finder import Then
    self._asked = True
    for finder in [f for f in sys.meta_path if f is not self]:
      spec = finder.find_spec(name, path, target)
      if spec is not None:
        spec.loader = Then(spec.loader, self._recorder.hook)  # type: ignore
        return spec
    return None


running: list[Recorder] = []  # that of this process, if there is one


def start(folder: str) -> None:
  """Records this process's program to a folder."""
  recorder = Recorder(folder)
  running.append(recorder)
  recorder.say("start", time=time.time())
  recorder.begin()
  if recorder.settings["evidence"]:
    from jax_mend import evidence
    evidence.watch(recorder.touched)
  sys.meta_path.insert(0, _Waiting(recorder))
