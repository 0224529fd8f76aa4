# SPDX-License-Identifier: Apache-2.0
"""Serves the edited files and our modules to Python's import."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
from importlib import machinery, util
import os
import sys
import types
from typing import Any

from jax_mend import table as tables
from jax_mend.installed import Installed
from jax_mend.store import Store
from jax_mend.table import Table

Hook = Callable[[types.ModuleType], None]
Hooks = Mapping[str, Hook]  # by the module's name


class Loader(machinery.SourceFileLoader):
  """Loads one served file; its `path` is the name that tracebacks show."""

  def __init__(self, name: str, file: str, finder: Finder):
    super().__init__(name, finder.store.text_path(file))
    self._file = file
    self._finder = finder

  def get_data(self, path: str) -> bytes:
    if path == self.path:
      return self._finder.text(self._file)
    return super().get_data(path)

  def get_code(self, fullname: str) -> types.CodeType:
    """The byte code of our own cache: upstream's is of another text."""
    code = self._finder.store.code(self._file)
    if code is None:
      text = self._finder.text(self._file)
      code = self.source_to_code(text, self.path)
      self._finder.store.keep(self._file, text, code)
    return code

  def get_resource_reader(self, name: str | None = None) -> Any:
    """The reader of the files that lie beside the installed one."""
    beside = machinery.SourceFileLoader(
        self.name, self._finder.jax.path(self._file))
    return beside.get_resource_reader(self.name)


class Then:
  """Loads a module as `loader` does, then calls `hook` with it."""

  def __init__(self, loader: Any, hook: Hook):
    self._loader = loader
    self._hook = hook

  def create_module(self, spec: machinery.ModuleSpec) -> Any:
    return self._loader.create_module(spec)

  def exec_module(self, module: types.ModuleType) -> None:
    module.__loader__ = self._loader
    if module.__spec__ is not None:
      module.__spec__.loader = self._loader
    self._loader.exec_module(module)
    self._hook(module)

  def __getattr__(self, name: str) -> Any:
    return getattr(self._loader, name)


class Finder:
  """A finder on `sys.meta_path` for what the table serves.

  Args:
    table: the release's.
    jax: the one that is installed.
    hooks: functions to call with modules of these names, once imported.
  """

  def __init__(self, table: Table, jax: Installed, hooks: Hooks):
    self.table = table
    self.jax = jax
    self.store = Store(table.key)
    self._served = {_module_name(file): file
                    for file in (*table.files, *table.modules)}
    self._hooks: dict[str, Hook] = {
        "jax._src.source_info_util": self._hide,
        "jax._src.traceback_util": self._hide_alike, **hooks}

  def install(self) -> None:
    sys.meta_path.insert(0, self)
    for name, hook in self._hooks.items():
      if name in sys.modules:
        hook(sys.modules[name])

  def hook(self, name: str, hook: Hook) -> None:
    """Calls `hook` with the module of a name, when it has been imported."""
    self._hooks[name] = hook

  def find_spec(self, name: str, path: Sequence[str] | None = None,
                target: types.ModuleType | None = None
                ) -> machinery.ModuleSpec | None:
    file = self._served.get(name)
    spec = None
    if file is not None:
      spec = self._spec(name, file)
    elif name in self._hooks:
      spec = next(filter(None, (
          finder.find_spec(name, path, target) for finder in sys.meta_path
          if finder is not self)), None)
    if name in self._hooks and spec is not None:
      spec.loader = Then(spec.loader, self._hooks[name])  # type: ignore
    return spec

  def _spec(self, name: str, file: str) -> machinery.ModuleSpec | None:
    folder = ([os.path.dirname(self.jax.path(file))]
              if file.endswith("/__init__.py") else None)
    loader = Loader(name, file, self)
    spec = util.spec_from_file_location(
        name, loader.path, loader=loader, submodule_search_locations=folder)
    if spec is not None:
      spec.cached = self.store.code_path(file)
    return spec

  def text(self, file: str) -> bytes:
    """The text of a served file, which runs in place of the installed one.

    Raises:
      ImportError: the installed file has changed since jax was looked at.
    """
    if file in self.table.modules:
      return self.table.added(file)
    data = self.jax.read(file)
    if tables.sha256(data) != self.table.files[file]:
      raise ImportError(f"{self.jax.path(file)} changed while this program "
                        "ran.\nNext: start the program again")
    return self.table.edited(file, data)

  def compile_all(self) -> None:
    """Keeps the byte code of all that is served, as pip does with a wheel."""
    for name, file in self._served.items():
      Loader(name, file, self).get_code(name)

  def _hide(self, module: types.ModuleType) -> None:
    """Has frames of jax hidden, whichever folder their file is in."""
    for folder in (self.store.text_path("jax"), self.jax.folder):
      module.register_exclusion(folder + os.sep)

  def _hide_alike(self, module: types.ModuleType) -> None:
    """Has folders that JAX leaves out of tracebacks left out in both trees."""
    register = module.register_exclusion
    mine, theirs = self.store.text_path("jax"), self.jax.folder

    def register_exclusion(path: str) -> None:
      register(path)
      for here, there in ((mine, theirs), (theirs, mine)):
        if path.startswith(here + os.sep):
          register(there + path[len(here):])

    module.register_exclusion = register_exclusion  # type: ignore


@functools.cache
def _module_name(file: str) -> str:
  return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
