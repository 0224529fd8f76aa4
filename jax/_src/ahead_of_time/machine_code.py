# SPDX-License-Identifier: Apache-2.0
"""Whole machine code of executables that were read back.

XLA keeps the machine code of what it compiles for the CPU, to be written out,
but not of what it loads. So an executable from the persistent compilation
cache, or from a file, is written out without it, and what is loaded from that
fails when it is called. Where such an executable came from is kept here: the
key of the cache's entry, which is read again, or the bytes that were loaded.

XLA drops the comparison functions of a sort when the executable is first
called, by whoever compiled it: equal programs of a process share one. Its error
names the next step here.

Cost: for an executable of the cache, one entry in a dictionary, kept until
another has its id (an executable has no weak references). For one that was
loaded from a file, its bytes, as long as it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import threading
from typing import Any
import weakref

from jax._src import compilation_cache
from jax._src.mend import pages

# By the id of an executable: what returns its whole code, or None, and the
# numbers of the devices that the code is for, if it was loaded for others.
_read_back: dict[int, tuple[Callable[[], bytes | None], Sequence[int]]] = {}

# What this thread read last from the compilation cache.
_last = threading.local()


def from_cache(executable: Any, key: str) -> None:
  """Keeps which entry of the compilation cache an executable is.

  Args:
    executable: the client's executable, just loaded.
    key: the key of the entry.
  """
  _last.read = executable, key


def noting(compile_or_read: Callable[..., Any]) -> Callable[..., Any]:
  """Decorates what compiles a program or reads it from the cache.

  Args:
    compile_or_read: returns an executable.

  Returns:
    The same, which keeps where the executable came from.
  """
  @functools.wraps(compile_or_read)
  def compile_or_read_noting(*args, **kwargs):
    executable = compile_or_read(*args, **kwargs)
    read, key = _last.__dict__.pop('read', (None, ''))
    client = getattr(executable, 'client', None)
    if read is executable and getattr(client, 'platform', None) == 'cpu':
      _read_back[id(executable)] = (lambda: _entry(client, key)), ()
    else:  # it may have the id of one that was read
      _read_back.pop(id(executable), None)
    return executable
  return compile_or_read_noting


def from_file(executable: Any, code: bytes, numbers: Sequence[int]) -> None:
  """Keeps the bytes that an executable was loaded from.

  Args:
    executable: the client's executable, just loaded.
    code: its bytes.
    numbers: the devices that the code is for.
  """
  if executable.client.platform == 'cpu':
    _read_back[id(executable)] = (lambda: code), numbers


def owned_by(compiled: Any) -> Any:
  """Drops what is kept of a loaded executable as soon as `compiled` goes.

  Args:
    compiled: the new ``Compiled``.

  Returns:
    `compiled`.
  """
  weakref.finalize(compiled, _read_back.pop,
                   id(compiled._executable.xla_executable), None)
  return compiled


def to_store(executable: Any) -> tuple[Any, ...]:
  """Returns what stands for an executable in a file.

  Args:
    executable: the client's executable.

  Returns:
    ``("exec", code)``, followed by the numbers of the devices that the code is
    for, if the executable was loaded for others.

  Raises:
    ValueError: it was read from an entry of the cache that is gone.
    RuntimeError: XLA has no code of it any more; the message says what to do.
  """
  if id(executable) not in _read_back:
    return 'exec', _code_of(executable)
  source, numbers = _read_back[id(executable)]
  code = source()
  if code is None:
    raise ValueError(
        'jax.experimental.serialize_executable.serialize: expected an '
        'executable with its machine code, got one that was read from an entry '
        'of the persistent compilation cache that is gone. Compile it again, '
        'in a new process or after jax.clear_caches().' +
        pages.see('ahead_of_time.md#an-executable'))
  return ('exec', code, tuple(numbers)) if numbers else ('exec', code)


def _code_of(executable: Any) -> bytes:
  """Returns the machine code that XLA writes out."""
  try:
    return executable.client.serialize_executable(executable)
  except RuntimeError as e:
    if 'is not serializable' not in str(e):
      raise
    raise type(e)(
        f"{e}\njax.experimental.serialize_executable.serialize: expected an "
        "executable that hasn't been called, got one that has, and that sorts "
        "or the like: XLA drops that part of its code at the first call. "
        "Serialize it before it is called, or call jax.clear_caches(), then "
        "lower, compile and serialize again." +
        pages.see('ahead_of_time.md#an-executable')) from e


def _entry(client: Any, key: str) -> bytes | None:
  """Returns the executable in an entry of the compilation cache, if any."""
  cache = compilation_cache._get_cache(client)
  packed = None if cache is None else cache.get(key)
  if packed is None:
    return None
  return compilation_cache.extract_executable_and_time(
      compilation_cache.decompress_executable(packed))[0]
