# SPDX-License-Identifier: Apache-2.0
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
import threading
from typing import Any
import weakref

from jax._src import core
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import abstract
from jax._src.mend import anatomy
from jax._src.mend import traces
from jax._src.varying import casts
from jax._src.varying import context
from jax._src.varying import contents
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


class _Rule(threading.local):
  """The innermost rule that runs.

  Attributes:
    axes: what the primal inputs vary over, until the rule has been told; None
      for one whose axes are those of its type.
    programs: the linear ones of ``jax.vjp`` that were made while it ran.
    wanted: of each primal input, whether its cotangent is wanted; None if that
      isn't known.
    given: the primal inputs of the forward rule that runs.
    sums: the calls of ``psum`` in it of what doesn't vary; None if no rule
      runs.
    forward: the forward rule of the one that runs; None if it isn't known.
    ended: of the rule that ran last, its forward rule and its sums, until the
      rule's results have been checked.
  """
  axes: Sequence[Axes | None] | None = None
  given: Sequence[Any] = ()
  programs: Sequence[Any] = ()
  wanted: Sequence[bool] | None = None
  sums: list[Any] | None = None
  forward: Any = None
  ended: tuple[Any, Sequence[Any]] = (None, ())

  @property
  def types(self) -> context.RuleTypes:
    return context.keyed.value.rule

  def wants(self, count: int) -> Sequence[bool]:
    """Tells of each of so many primal inputs if its cotangent is wanted.

    All are if that isn't known.
    """
    flags = self.wanted
    return [True] * count if flags is None or len(flags) != count else flags

  @contextlib.contextmanager
  def running(self, retyped: bool, wanted: Sequence[bool] | None):
    """While a rule runs, within another perhaps.

    One that is re-typed is given residuals that vary by a promotion, which the
    user's own casts in it were to make vary.
    """
    before = self.programs, self.wanted, context.swap(
        'rule', context.RuleTypes(retyped))
    self.programs, self.wanted = [], wanted
    again = casts.tracing_again() if retyped else contextlib.nullcontext()
    try:
      with again:
        yield
    finally:
      self.programs, self.wanted, types = before
      context.swap('rule', types)

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
  context.swap('rule', rule.types._replace(
      inputs=(tuple(traced), tuple(told))))
  return told


# The inputs of a forward rule that a value is made of, each by its position and
# the axes over which a reduction has made it the same since.
Places = frozenset[tuple[int, Axes]]

# Of programs that a forward rule made: for each input, what it is made of; None
# where that isn't known.
_places: weakref.WeakKeyDictionary[Any, list[Places | None]] = (
    weakref.WeakKeyDictionary())


def noting_inputs(
    fwd: Callable[..., Any], inputs: Sequence[Any]) -> Callable[..., Any]:
  """Lets `record_program` know what a forward rule is given, while it runs.

  Args:
    fwd: a ``custom_vjp`` forward rule.
    inputs: the primal inputs of its function, flat.

  Returns:
    The rule. Outside of shard_map, ``fwd`` itself.
  """
  if not vt.checking():
    return fwd

  def call(*args, **kwargs):
    before, rule.given = rule.given, inputs
    try:
      return fwd(*args, **kwargs)
    finally:
      rule.given = before
  return call


def record_program(jaxpr, primals: Sequence[Any]) -> None:
  """Notes a linear program of ``jax.vjp``, and the arguments of the call.

  Args:
    jaxpr: the program. In a backward rule its types are those of now.
    primals: the primal inputs.
  """
  if rule.types.retyped:
    programs: Any = rule.programs  # a list while a rule runs
    programs.append(jaxpr)
  if rule.given:
    _places[jaxpr] = list(map(_Sources(rule.given).of, primals))


class _Sources:
  """The inputs of a forward rule that a value is computed from.

  They are known of the inputs themselves, of constants, and of what operations
  and collectives make of these: not of what a loop or a branch makes. The walk
  goes into calls, and not out of a function that is traced on its own, jitted
  say.

  Cost: a visit of each operation that the value is computed by.
  """

  def __init__(self, given: Sequence[Any]):
    self.known: dict[int, Places | None] = {}
    self.kept: list[Any] = []  # whose ids these are
    for n, x in enumerate(given):
      if isinstance(x, core.Tracer):
        itself = frozenset([(n, vt.NO_AXES)])
        self._learn(x, itself)
        *_, inner = traces.layers(x)
        self._learn(inner, itself)

  def of(self, x: Any) -> Places | None:
    """The inputs' places, or None."""
    if not isinstance(x, core.Tracer):
      return frozenset()
    if id(x) in self.known:
      return self.known[id(x)]
    *_, inner = traces.layers(x)
    if id(inner) in self.known:
      return self.known[id(inner)]
    if not isinstance(inner, pe.DynamicJaxprTracer):
      return None
    made_by, todo = traces.steps_of(inner), [inner]
    while todo:
      v = todo[-1]
      step = made_by(v)
      missing = [o for o in step.operands if id(o) not in self.known
                 and not _is_constant(o)] if step else []
      if step and missing and not _is_opaque(step.eqn):
        todo += missing
        continue
      self._learn(todo.pop(), step and _Places().equation(step.eqn, [
          frozenset() if _is_constant(o) else self.known.get(id(o))
          for o in step.operands]).outs[step.n])
    return self.known[id(inner)]

  def _learn(self, x: Any, found: Places | None) -> None:
    same = self.known.get(id(x))
    self.known[id(x)] = found | same if found and same else found
    self.kept.append(x)


def _is_constant(x: Any) -> bool:
  if isinstance(x, pe.DynamicJaxprTracer):  # which can stand for one
    if type(getattr(x, 'val', None)) is core.Literal:
      return True
    x = x.get_referent()
  return not isinstance(x, (core.Tracer, core.Var))


def _is_opaque(eqn: Any) -> bool:
  return anatomy.loop(eqn) is not None or anatomy.only(eqn) is None and any(
      True for _ in contents.jaxprs_in(eqn.params))


class _Places(abstract.Domain['Places | None']):
  """The domain of what values are made of."""

  def join(self, facts):
    every = list(facts)
    return None if None in every else frozenset[Any]().union(*every)

  def free(self, v):
    return frozenset()

  def called(self, eqn):
    return anatomy.only(eqn)

  def equation(self, eqn, ins):
    if _is_opaque(eqn):
      return abstract.Found([None] * len(eqn.outvars))
    return abstract.of_equation(self, eqn, ins)

  def step(self, eqn, ins):
    if None in ins:
      return abstract.Found([None] * len(eqn.outvars))
    axes = contents.named_axes(eqn)
    return abstract.Found([
        frozenset((n, same | axes - vt.varying(v.aval))
                  for places in ins for n, same in places)
        for v in eqn.outvars])


def places_of(jaxpr) -> list[Places | None] | None:
  """The inputs of its forward rule that those of a program are made of.

  Returns:
    For each input of the ``jax.vjp``, their places, or None where they aren't
    known. None if no forward rule made the program.
  """
  return _places.get(jaxpr)
