# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The backward rule of a custom_vjp that runs, if it is re-typed.

Its function was traced before it was known what varies. The rule is a function
still, of what its forward rule kept then. It is told what the function's inputs
vary over now, and what it calls can ask. What they are told is part of the key
of every tracing cache: a function that the rule calls, jitted say, is traced
anew when it is called elsewhere with arguments of the same types.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import functools
import threading
from typing import Any, NamedTuple
import weakref

from jax._src import core
from jax._src.mend import trace_key
from jax._src.varying import casts
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


class At(NamedTuple):
  """The types that a rule runs at.

  Attributes:
    retyped: whether it, or a cotangent of it, varies over more axes than when
      its function was traced.
    inputs: the types of the primal inputs, as traced and as told, while it runs
      at others than it was traced at.
  """
  retyped: bool = False
  inputs: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None


_at = trace_key.state('backward_rule', At())


class _Rule(threading.local):
  """The innermost rule that runs.

  Attributes:
    axes: what the primal inputs vary over, until the rule has been told; None
      for one whose axes are those of its type.
    made: the linear programs of ``jax.vjp`` that were made while it ran.
    wanted: of each primal input, whether its cotangent is wanted; None if that
      isn't known.
    given: the primal inputs of the forward rule that runs.
  """
  axes: Sequence[Axes | None] | None = None
  given: Sequence[Any] = ()
  made: Sequence[Any] = ()
  wanted: Sequence[bool] | None = None

  @property
  def at(self) -> At:
    return _at.value

  @contextlib.contextmanager
  def running(self, retyped: bool, wanted: Sequence[bool] | None):
    """While a rule runs, within another perhaps.

    One that is re-typed is given residuals that vary by a promotion, which the
    user's own casts in it were to make vary.
    """
    before = self.made, self.wanted, _at.swap_local(At(retyped))
    self.made, self.wanted = [], wanted
    again = casts.tracing_again() if retyped else contextlib.nullcontext()
    try:
      with again:
        yield
    finally:
      self.made, self.wanted, at = before
      _at.set_local(at)

  @contextlib.contextmanager
  def of(self, axes: Sequence[Axes | None]):
    """The rule of a call that is re-typed; the last time holds, if several."""
    if self.axes is None:
      self.axes = axes
    try:
      with self.running(True, self.wanted):
        yield
    finally:
      self.axes = None


rule = _Rule()


def in_avals(traced):
  """The types that the results of a backward rule are checked against."""
  axes, rule.axes = rule.axes, None
  if axes is None or len(axes) != len(traced):
    return traced
  told = [a if x is None else vt.with_varying(a, x)
          for a, x in zip(traced, axes)]
  _at.set_local(rule.at._replace(inputs=(tuple(traced), tuple(told))))
  return told


# Of programs that a forward rule made: for each input, which of the rule's own
# it is.
_places: weakref.WeakKeyDictionary[Any, list[list[int]]] = (
    weakref.WeakKeyDictionary())


def noting_inputs(
    fwd: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
  """Lets `made` know what a forward rule is given, while it runs.

  Args:
    fwd: a ``custom_vjp`` forward rule.
    inputs: the primal inputs of its function, flat.

  Returns:
    The rule. Outside of shard_map, ``fwd`` itself.
  """
  if not vt.checking():
    return fwd

  @functools.wraps(fwd)
  def call(*args, **kwargs):
    before, rule.given = rule.given, inputs
    try:
      return fwd(*args, **kwargs)
    finally:
      rule.given = before
  return call


def made(jaxpr, primals: Sequence[Any]) -> None:
  """Notes a linear program of ``jax.vjp``, and what that was called with.

  Args:
    jaxpr: the program. In a backward rule its types are those of now.
    primals: the primal inputs.
  """
  if rule.at.retyped:
    rule.made.append(jaxpr)
  if _traces_of(primals) <= _traces_of(rule.given):
    _places[jaxpr] = [[n for n, given in enumerate(rule.given) if x is given]
                      for x in primals]


def _traces_of(values: Sequence[Any]) -> set[Any]:
  return {x._trace for x in values if isinstance(x, core.Tracer)}


def places_of(jaxpr) -> list[list[int]] | None:
  """The inputs of its forward rule that those of a program are.

  Returns:
    For each input of the ``jax.vjp``, the positions of the same value; none for
    what the rule computed. None if that isn't known: no forward rule made the
    program, or a function did that it jits or maps.
  """
  return _places.get(jaxpr)
