# SPDX-License-Identifier: Apache-2.0
"""Refusals of `compute_on`, and the words that it uses (jax#27825).

Every message names `compute_on`, what was expected, what came, and what to
write instead. The exception classes, and the words that upstream's own tests
look for, are those of the base release. This module imports nothing of the
base: `jax._src.core` reaches it while it is itself being imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from jax._src.mend import pages

_NAMED_TYPES = ('device_host', 'device', 'tpu_sparsecore')
_STREAM_PREFIX = 'gpu_stream:'


def check_compute_type(compute_type: Any) -> None:
  """Refuses what is not the name of a compute type.

  Args:
    compute_type: the user's argument, of any type.

  Raises:
    TypeError: it is not a string.
    ValueError: it is a string that names no compute type.
  """
  if not isinstance(compute_type, str):
    hint = ''
    if callable(compute_type):
      hint = (' To run that function on the host, write'
              " `compute_on('device_host')(f)`.")
    raise TypeError(
        "`compute_on`'s compute_type argument must be a string, one of"
        f" {_expected()}; got {compute_type!r} of type"
        f' {type(compute_type).__name__}.{hint}' +
        pages.see('compute_on_ahead.md#ways-to-reach-the-host'))
  if (compute_type not in _NAMED_TYPES
      and not compute_type.startswith(_STREAM_PREFIX)):
    raise ValueError(
        f'Invalid compute type {compute_type!r} given to `compute_on`. Expected'
        f' one of {_expected()}.' +
        pages.see('compute_on_ahead.md#ways-to-reach-the-host'))


def check_function(fun: Any, compute_type: str) -> None:
  """Refuses to transform what cannot be called.

  Args:
    fun: what the user asked to run under `compute_type`.
    compute_type: a valid compute type.

  Raises:
    TypeError: `fun` is not callable.
  """
  if not callable(fun):
    raise TypeError(
        f'`compute_on` with compute type {compute_type!r} expected a function'
        f' to transform; got {fun!r} of type {type(fun).__name__}. Pass the'
        ' function itself, not the result of calling it.' +
        pages.see('compute_on_ahead.md#ways-to-reach-the-host'))


def nesting_error(outer: str, inner: str | None) -> Callable[[str], Exception]:
  """Returns what makes the base's nesting error, given the base's message.

  Args:
    outer: the compute type in force.
    inner: the compute type asked for inside it; None is that of an operation
      which was traced outside of `compute_on`.
  """
  def error(message: str) -> Exception:
    asked = ('an operation that was traced outside of `compute_on`'
             if inner is None else f'{inner!r}')
    return NotImplementedError(
        f'{message}. The outer compute type is {outer!r}, inside it came'
        f' {asked}. Give both the same type, or call them one after the other.'
        + pages.see('compute_on_ahead.md#nesting'))
  return error


def other_type_inside(compute_type: str) -> Callable[[Any, str], bool]:
  """Returns the check that lowering makes of a `compute_on` body.

  The same type may nest: the inner call asks for what it already has.

  Args:
    compute_type: the type of the `compute_on` being lowered.

  Returns:
    A function of the body's jaxpr and the primitive's name; False when all of
    it may be lowered.

  Raises:
    ValueError: by the returned function, if another compute type is inside.
  """
  def refuse(jaxpr: Any, name: str) -> bool:
    for eqn in _equations(jaxpr):
      inner = eqn.params.get('compute_type', compute_type)
      if eqn.primitive.name == name and inner != compute_type:
        raise ValueError(
            'Nesting `compute_on` with different compute types is not allowed.'
            f' The outer compute type is {compute_type!r}, inside it came'
            f' {inner!r}. Give both the same type, or call them one after the'
            ' other.' +
            pages.see('compute_on_ahead.md#nesting'))
    return False
  return refuse


def _expected() -> str:
  names = ', '.join(repr(t) for t in _NAMED_TYPES)
  return f"{names} or '{_STREAM_PREFIX}N' (N is the number of a stream)"


def _equations(jaxpr: Any) -> Iterator[Any]:
  """All equations of a jaxpr, those of the jaxprs in its parameters too."""
  seen: set[int] = set()
  todo = [jaxpr]
  while todo:
    # Closed jaxprs were a type of their own up to some base between 0.10.2
    # and 0.12.0.1; both kinds have `eqns`.
    jaxpr = todo.pop()
    if id(jaxpr) in seen:
      continue
    seen.add(id(jaxpr))
    for eqn in jaxpr.eqns:
      yield eqn
      for param in eqn.params.values():
        items = param if isinstance(param, (tuple, list)) else (param,)
        todo.extend(x for x in items if hasattr(x, 'eqns'))
