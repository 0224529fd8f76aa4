# SPDX-License-Identifier: Apache-2.0
"""Stores executables, and loads them on their devices.

`jax.experimental.serialize_executable` pickles a compiled function, with the
machine code and each device by its number. Three things are added here:

* What the machine code calls is started before it is loaded (`kernels`).
* The devices that it was compiled for are looked up before it is loaded. Up to
  JAX 0.6 the machine code knows them itself; from 0.10 on it must be told, and
  was told all devices of the process: with another number it fails when it is
  called, or aborts the process.
* Python callbacks are refused by name, before pickle meets them.
* What was itself read back is written out whole (`machine_code`).

The devices are those that it was compiled for, found by their numbers, or those
given: the i-th given device in place of the i-th that it was compiled for, in
the machine code and in all shardings. The format is the base's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import io
import pickle
import re
from typing import Any

import numpy as np

from jax._src import compiler
from jax._src import debugging
from jax._src.ahead_of_time import kernels
from jax._src.ahead_of_time import machine_code
from jax._src.lib import xla_client
from jax._src.mend import pages
from jax._src.mend import releases

_API = 'jax.experimental.serialize_executable'


def check_storable(compiled: Any) -> None:
  """Refuses an executable that calls back into this process.

  Args:
    compiled: the ``Compiled`` to be stored.

  Raises:
    ValueError: it has Python callbacks.
  """
  unloaded = getattr(compiled._executable, '_unloaded_executable', None)
  callbacks = list(getattr(unloaded, 'host_callbacks', None) or ())
  if callbacks:
    names = sorted({n for n in map(_name_of, callbacks) if n is not None})
    said = ', '.join(names or _calls_in(compiled.as_text())) or 'a function'
    raise ValueError(
        f"{_API}.serialize: expected an executable that calls no Python, got "
        f"one with {len(callbacks)} callback(s), to {said}. A Python function "
        "can't be stored: compile without jax.debug.print, jax.debug.callback, "
        "jax.pure_callback and io_callback, or with the callback around the "
        "stored executable." +
        pages.see('ahead_of_time.md#an-executable'))


class _Anything:
  """Stands for any class or object while a pickle is looked through."""

  def _does_nothing(self, *unused_args, **unused_kwargs):
    return None

  __init__ = _does_nothing
  __call__ = __setstate__ = __setitem__ = _does_nothing
  append = extend = add = _does_nothing


class _LookingThrough(pickle.Unpickler):
  """Finds the stored devices; makes, imports and loads nothing."""

  def __init__(self, file: Any):
    super().__init__(file)
    self.numbers: list[int] = []

  def find_class(self, module, name):
    return _Anything

  def persistent_load(self, pid):
    if pid[0] == 'device' and pid[1] not in self.numbers:
      self.numbers.append(pid[1])
    return _Anything()


class _Loading(pickle.Unpickler):
  """Reads what `serialize` wrote, with these devices for the stored ones."""

  def __init__(self, file: Any, backend: Any, devices: dict[int, Any]):
    super().__init__(file)
    self._backend = backend
    self._devices = devices

  def persistent_load(self, pid):
    if pid[0] == 'exec':
      # What was loaded for other devices is stored with those of its code.
      self.numbers = pid[2] if len(pid) > 2 else list(self._devices)
      self.code = pid[1]
      self.executable = _load_code(
          self._backend, self.code, self._devices, self.numbers)
      return self.executable
    if pid[0] == 'device':
      return self._devices[pid[1]]
    if pid[0] == 'client':
      return self._backend
    raise pickle.UnpicklingError(f'unknown persistent id {pid[0]!r}')


def load(serialized: bytes, backend: Any, given: Sequence[Any] | None
         ) -> tuple[Any, Any, Any]:
  """Reads a stored executable, ready to be called.

  Args:
    serialized: what ``serialize`` returned first.
    backend: the client to load it with.
    given: the devices to run on, or None for those it was compiled for.

  Returns:
    The unloaded executable, the information on its arguments, and whether it
    takes no keywords.

  Raises:
    ValueError: the devices aren't there, or aren't as many.
    RuntimeError: XLA doesn't load it; if it calls an unknown kernel, the
      message says so.
  """
  looking = _LookingThrough(io.BytesIO(serialized))
  looking.load()
  devices = _devices(looking.numbers, backend, given)
  if backend.platform == 'cpu':
    kernels.start(serialized)
  loading = _Loading(io.BytesIO(serialized), backend, devices)
  loaded = loading.load()
  machine_code.from_file(loading.executable, loading.code, loading.numbers)
  return loaded


def _devices(numbers: Sequence[int], backend: Any,
             given: Sequence[Any] | None) -> dict[int, Any]:
  """Returns the device for each of those that it was compiled for, in order.

  The list of all devices is the first thing in a stored executable that has
  any, so `numbers` are in its order.
  """
  if given is not None:
    if len(given) != len(numbers):
      raise ValueError(
          f'{_API}.deserialize_and_load: expected {len(numbers)} '
          'execution_devices, as many as the executable was compiled for, got '
          f'{len(given)}. Give it {len(numbers)}, or compile it again.' +
          pages.see('ahead_of_time.md#an-executable'))
    return dict(zip(numbers, given))
  there = {d.id: d for d in backend.devices()}
  missing = [n for n in numbers if n not in there]
  if missing:
    choose = ('pass execution_devices to run it on others, '
              if releases.loads_for_devices() else '')
    raise ValueError(
        f'{_API}.deserialize_and_load: expected the {len(numbers)} device(s) '
        f'that the executable was compiled for, with the ids {list(numbers)}, '
        f'got a process with {len(there)} device(s), without {missing}. Start '
        f'it with as many devices, {choose}or compile it again.' +
        pages.see('ahead_of_time.md#an-executable'))
  return {n: there[n] for n in numbers}


def _load_code(backend: Any, data: bytes, devices: dict[int, Any],
               stored_with: Sequence[int]) -> Any:
  """Loads machine code that is stored with these numbers, for the devices."""
  options: dict[str, Any] = {}
  if releases.loads_for_devices():
    options['executable_devices'] = xla_client.DeviceList(
        tuple(devices.values()))
    numbers = [d.id for d in devices.values()]
    if numbers != list(stored_with):
      options['compile_options'] = compiler.get_compile_options(
          num_replicas=1, num_partitions=len(numbers),
          device_assignment=np.array([numbers]), backend=backend)
  try:
    return backend.deserialize_executable(data, **options)
  except RuntimeError as e:
    if 'NOT_FOUND' not in str(e) or not re.search(
        'custom call|FFI handler', str(e)):
      raise
    raise type(e)(
        f"{e}\n{_API}.deserialize_and_load: the executable calls a kernel that "
        "this process doesn't have. Import the library that it is from, or "
        "register it with jax.ffi.register_ffi_target, before loading." +
        pages.see('ahead_of_time.md#an-executable')) from e


def _name_of(callback: Any) -> str | None:
  """Returns the name of the user's function that a host callback calls."""
  todo, seen = [callback], set()
  while todo:
    f = todo.pop()
    if id(f) in seen:
      continue
    seen.add(id(f))
    module = str(getattr(f, '__module__', None))
    name = getattr(f, '__qualname__', getattr(f, '__name__', None))
    if name is not None and not module.startswith('jax._src.'):
      return name if module == 'None' else f'{module}.{name}'
    if f is debugging._format_print_callback:
      return 'jax.debug.print'
    todo.extend(_within(f))
  return None


def _within(f: Any) -> Iterator[Any]:
  """Functions that `f` may call: in its closure, or what it wraps."""
  for cell in getattr(f, '__closure__', None) or ():
    try:
      inner = cell.cell_contents
    except ValueError:  # not filled yet
      continue
    if callable(inner) and not isinstance(inner, type):
      yield inner
  for name in ('callback_func', 'func', '__wrapped__'):
    if hasattr(f, name):
      yield getattr(f, name)


_CALLBACK = re.compile(
    r'custom_call_target="\w*python\w*callback".*?op_name="[^"]*?(\w+)'
    r'(?:\[[^"]*)?"(?: source_file="([^"]*)" source_line=(\d+))?')


def _calls_in(hlo_text: str) -> list[str]:
  """Returns the callbacks in a compiled module, by where they are called."""
  return sorted({f'the {name} in {file}:{line}' if file else f'a {name}'
                 for name, file, line in _CALLBACK.findall(hlo_text)})
