# SPDX-License-Identifier: Apache-2.0
"""The context in which the function of a ``shard_map`` is traced.

It is one immutable value for each thread, in two parts. What a trace comes out
differently by is ``Keyed``, and part of the keys of all tracing caches, as one
entry (``mend.trace_key``); what only tells who calls whom is ``Running``. A
part of the program replaces a field while it runs, and puts back what the field
of ``Keyed`` was, whatever the others have become; calls with one of ``Running``
nest.

Cost: a look at a field is an attribute; a replaced one makes a tuple.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
import contextlib
import threading
from typing import Any, NamedTuple

from jax._src import config
from jax._src.mend import trace_key


class RuleTypes(NamedTuple):
  """The types that a backward rule runs at.

  Attributes:
    retyped: whether it, or a cotangent of it, varies over more axes than when
      its function was traced.
    inputs: the types of the primal inputs, as traced and as told, while it runs
      at others than it was traced at.
  """
  retyped: bool = False
  inputs: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None


class Keyed(NamedTuple):
  """The fields that are part of tracing caches' keys.

  Attributes:
    traced_again: whether what is traced was traced before, with inputs that
      varied less (``casts``). It calls functions with caches of their own.
    refs_widened: what refs outside were widened by, whenever something was
      traced again for that (``retrace``).
    rule: the types of the innermost backward rule that runs (``backward``).
    derivatives_at_once: whether a sum that a derivative makes is refused where
      devices may diverge, as whoever traces can trace again (``divergence``).
    predicates_agree: whether predicates are taken to be the same on all
      devices, as JAX takes them.
  """
  traced_again: bool = False
  refs_widened: tuple[frozenset[Any], ...] = ()
  rule: RuleTypes = RuleTypes()
  derivatives_at_once: bool = False
  predicates_agree: bool = False


class Running(NamedTuple):
  """The fields that no trace depends on.

  Attributes:
    discharging: whether refs are being made values, before 0.9.1 (``bind``).
    directions: whether what varies over more axes are directions, so that no
      sum can be missing (``retype_values``).
    executing: whether an eager ``shard_map`` runs what was bound, facts at hand
      (``agreement``).
    mean: whether ``pmean`` sums (``autodiff.already_summed``).
    judged_later: whether what is traced is judged where it is applied, if it is
      (``divergence``).
  """
  discharging: bool = False
  directions: bool = False
  executing: bool = False
  mean: bool = False
  judged_later: bool = False


class _Threads(threading.local):
  now = Running()


_DEFAULT = Keyed()
_AT = {field: n for n, field in enumerate(Keyed._fields)}
keyed = trace_key.state('varying_context', _DEFAULT)  # its `value` is `Keyed`
running = _Threads()  # its `now` is `Running`


def swap(field: str, value: Any) -> Any:
  """Replaces a field that is in tracing caches' keys; returns what it was."""
  before, at = keyed.value, _AT[field]
  fields: Any = (*before[:at], value, *before[at + 1:])
  now = Keyed(*fields)  # in the fewest steps
  # Else a setting for all threads would be hidden from this one's keys.
  keyed.set_local(config.config_ext.unset if now == _DEFAULT else now)
  return before[at]


@contextlib.contextmanager
def replacing(field: str, value: Any) -> Iterator[None]:
  """While a field that is in tracing caches' keys has another value."""
  before = swap(field, value)
  try:
    yield
  finally:
    swap(field, before)


def run(field: str, function: Callable, /, *args: Any, **kwargs: Any) -> Any:
  """Calls a function while a field of ``Running`` is on.

  Args:
    field: its name.
    function: takes the other arguments.
    *args: whatever its caller passes, and ``kwargs``.

  Returns:
    What ``function`` returns.
  """
  before = running.now
  running.now = before._replace(**{field: True})
  try:
    return function(*args, **kwargs)
  finally:
    running.now = before
