# SPDX-License-Identifier: Apache-2.0
"""Records what a program compiles and what its calls return.

Runs in the process that `compare` starts, on a stock or a mended jax. A line of
JSON a fact goes to events.jsonl as it happens, so that of a program that hangs
or dies all is there up to that. `hooks` says where releases compile and call.
Each call is waited for: that is the cost, beside a digest of each result. A
process that is forked from this one records nothing.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
import collections
import faulthandler
import importlib
import json
import os
import re
import sys
import threading
import traceback
import types
from typing import Any
import weakref

from jax_mend import evidence, hooks, store, values

FOLDER = "JAX_MEND_RECORD"
_HERE = os.path.dirname(os.path.abspath(__file__))
# What differs from process to process: where a callback lies in memory, and
# the name of an axis that has none.
_POINTER = re.compile(r'(backend_config = ")\d{6,}"|(descriptor = )\d{6,}|'
                      r'(<axis )0x[0-9a-f]+(?=>)')
_OPERATION = re.compile(r"\b[a-z]+\.[a-z_]+\b")
_UNNAMED = "unnamed_function"  # what eager shard_map calls its primitives
# A loaded executable's text names the places that it was compiled at.
_METADATA = re.compile(r", metadata=\{[^}]*\}")


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
    self._calls: dict[int, int] = {}
    self._digests: dict[int, Any] = {}  # of arrays, which don't change
    self._store: values.Store | None = None
    self._libraries = [os.path.dirname(os.__file__), _HERE, store.root()]
    self._lock = threading.RLock()
    self._on = True
    self.touched = evidence.Touched()
    self.where = ""  # the test that runs, under pytest

  def say(self, what: str, **facts: Any) -> None:
    if self._on:
      with self._lock:
        self._out.write(json.dumps({"what": what, **facts}) + "\n")

  def begin(self) -> None:
    """Watches how the program ends, and for how long it runs."""
    if hasattr(os, "register_at_fork"):
      os.register_at_fork(after_in_child=self._end)
    if self.settings["limit"]:
      faulthandler.dump_traceback_later(self.settings["limit"],
                                        file=self._stack)
    # Not by `sys.excepthook`, which programs set to their own.
    sys.addaudithook(self._audit)
    atexit.register(lambda: self.say("rest", patches=self.touched.taken()))

  def _end(self) -> None:
    self._on = False

  def _audit(self, event: str, args: Any) -> None:
    if event == "sys.excepthook" and args[2] is not None:
      error = args[2].with_traceback(args[3])
      self.say("error", **self.described(error))

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
    self.touched.taken()
    self.say("jax")
    hooks.hook(self)

  def compiled(self, module: Any, executable: Any) -> None:
    """Tells a program: its name, the user's line, its text's digest."""
    if self._on:
      name = module.operation.attributes["sym_name"].value
      self._program("compiled", name, str(module), executable)

  def lowered(self, text: Callable[[], str], name: str) -> None:
    """Tells a program that was lowered, and may be run elsewhere."""
    if self._on:
      self._program("lowered", name, text(), None)

  def _program(self, how: str, name: str, text: str, executable: Any) -> int:
    text = _POINTER.sub(r"\1\2\3", text)
    line, function = self._line()
    name = re.sub(r"^jit__?", "", name)
    if name == _UNNAMED:
      name = f"a primitive of {function}"
    with self._lock:
      number = len(self._calls)
      self._calls[number] = 0
      if executable is not None:
        self._numbers[id(executable)] = number
        self._keep.append(executable)
    self.say("program", number=number, name=name, line=line, test=self.where,
             code=values.digest(text.encode()), how=how,
             operations=collections.Counter(_OPERATION.findall(text)),
             patches=self.touched.taken(how != "lowered"))
    return number

  def _loaded(self, executable: Any) -> int:
    """The number of an executable that another process has compiled."""
    module = executable.hlo_modules()[0]
    text = _METADATA.sub("", module.to_string()).partition("\n")[2]
    return self._program("loaded", module.name, text, executable)

  def _line(self) -> tuple[str, str]:
    """The innermost line of the user's on the stack; else of any caller."""
    frame: Any = sys._getframe(3)
    while frame:
      if not self._is_library(frame.f_code.co_filename):
        return (f"{_shown(frame.f_code.co_filename)}:{frame.f_lineno}",
                frame.f_code.co_name)
      frame = frame.f_back
    return "", ""

  def called(self, executable: Any, args: Any, call: Callable[[], Any]) -> Any:
    """Makes a call of a program, and tells what it is given and returns."""
    if not self._on:
      return call()
    number = self._numbers.get(id(executable))
    if number is None:
      number = self._loaded(executable)
    given = values.digest("".join(map(self._known, args)).encode())
    with self._lock:
      at, self._calls[number] = self._calls[number], self._calls[number] + 1
    self.say("call", number=number, at=at, given=given)
    results = call()
    self.say("results", number=number, at=at,
             results=[self._told(r) for r in results])
    return results

  def _known(self, array: Any) -> str:
    """The content of an argument, however it lies on the devices."""
    known = self._digests.get(id(array))
    if known and known[0]() is array:
      return known[1]
    if hasattr(array, "is_deleted") and array.is_deleted():
      return "deleted"  # the call says so
    if hasattr(array, "addressable_shards") or hasattr(array, "_base_array"):
      names = {name for *_, name in self._told(array)}
      return self._remember(array, " ".join(sorted(names)))
    assert self._store is not None
    return self._store.digest(array) if hasattr(array, "dtype") else repr(array)

  def _remember(self, array: Any, text: str) -> str:
    number, digests = id(array), self._digests
    try:
      gone = weakref.ref(array, lambda _: digests.pop(number, None))
    except TypeError:
      return text
    digests[number] = gone, text
    return text

  def _told(self, result: Any) -> list[list[Any]]:
    """[device, index, digest] of each part of a result in this process."""
    array = getattr(result, "_base_array", result)  # of random keys
    assert self._store is not None
    found = []
    for shard in getattr(array, "addressable_shards", ()):
      index = [[s.start or 0, s.stop] for s in shard.index]
      found.append([shard.device.id, index,
                    self._store.digest(shard.data.__array__())])
    self._remember(result, " ".join(sorted({name for *_, name in found})))
    return found


def _shown(file: str) -> str:
  near = os.path.relpath(file) if os.path.isabs(file) else file
  return file if near.startswith("..") else near


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
  recorder.begin()
  if recorder.settings["evidence"]:
    evidence.watch(recorder.touched)
  sys.meta_path.insert(0, _Waiting(recorder))
