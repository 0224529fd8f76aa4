# SPDX-License-Identifier: Apache-2.0
"""The entry of Mend's options and states in the keys of tracing caches.

What was traced under one setting of an option must not be found under another,
so each option and state stands in the keys of JAX's tracing caches and of
``jit``. All entries of a key are hashed and compared at each call of a cached
function, of which a trace makes thousands: six entries of ours took 0.4 % of
it. So there is one entry, which is None while every part has its default.

Limit: an option that another thread sets for all threads, while this one is in
a ``with`` of another of Mend's options, enters this one's keys after the
``with``.
"""
from __future__ import annotations

from collections.abc import Callable
import operator
from typing import Any

from jax._src import config
from jax._src.mend import releases

_Config: Any = config.config_ext.Config
_unset = config.config_ext.unset
_parts: list[tuple[Any, Any]] = []  # with what each is until set


def _new(kind: Any, name: str, value: Any, **keys: bool) -> Any:
  """Makes a state of JAX's, with a name if options can join the trace keys."""
  return (kind(name, value, **keys) if releases.options_join_trace_keys()
          else kind(value, **keys))


def _new_entry() -> Any:
  """The entry, in the keys of tracing caches and of ``jit``."""
  if releases.options_join_trace_keys():
    return _new(_Config, 'mend_trace_key', None, include_in_jit_key=True,
                include_in_trace_context=True)
  entry = _new(_Config, 'mend_trace_key', None, include_in_jit_key=True)
  edited: Any = config  # it adds what is in this list
  edited.extra_trace_states.append(entry)
  edited.extra_trace_value = operator.attrgetter('value')
  return entry


_entry = _new_entry()


def _values(get: Callable[[Any], Any]) -> tuple[Any, ...] | None:
  """The settings of all parts; None if nothing was set."""
  values = [get(part) for part, _ in _parts]
  return (None if values == [default for _, default in _parts]
          else tuple(values))


def _set_global(_: Any = None) -> None:
  _entry.set_global(_values(lambda part: part.get_global()))


def _set_local(_: Any = None) -> None:
  for part, _ in _parts:
    if part.get_local() is not _unset:
      _entry.set_local(_values(operator.attrgetter('value')))
      return
  _entry.set_local(_unset)


def option(make: Callable[..., Any], *args: Any, **params: Any) -> Any:
  """Defines a configuration option that is part of every tracing cache's key.

  Args:
    make: ``config.bool_state`` or another such function.
    *args: its arguments, and ``params``.

  Returns:
    The option, whose ``value`` is the current setting.
  """
  made = make(*args, update_global_hook=_set_global,
              update_thread_local_hook=_set_local, **params)
  _parts.append((made, made.get_global()))
  return made


class _State(_Config):
  """A value for the current thread that is part of the key."""

  def swap_local(self, value: Any) -> Any:
    before = super().swap_local(value)
    _set_local()
    return before

  def set_local(self, value: Any) -> None:
    super().set_local(value)
    _set_local()


def state(name: str, default: Any) -> Any:
  """A value for the current thread that is part of tracing caches' keys.

  Args:
    name: what to call it.
    default: what it is until set; hashable, as every other.

  Returns:
    What has it as ``value``, with ``swap_local`` and ``set_local``.
  """
  made = _new(_State, name, default)
  _parts.append((made, default))
  return made
