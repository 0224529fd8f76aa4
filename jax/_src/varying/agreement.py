# SPDX-License-Identifier: Apache-2.0
"""Along which axes a value at hand may differ between devices.

A type can only say that a value varies: what ``all_gather`` returns does, and
what is cast does, although each device has the same. That a value agrees along
an axis of its type is a fact of its own, made of its operands' facts: what
doesn't vary agrees, so does what is computed of that alone (``dependences``),
and what a gather or a reduction over the axis returns. It is found when it is
first asked for, and kept with the trace, one set of axes for a value. What a
traced function captures has the fact that it has outside.

An eager ``shard_map`` traces nothing; there, each value's fact is found as it
is computed.

Limits: a function's argument differs along all that its type names, unless
whoever calls it says more (``arguments``).

Cost: one visit of each equation that a value that is asked for is computed by,
as far as it agrees: the walk ends where a value differs along all its axes.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple
import weakref

from jax._src import core
from jax._src.mend import traces
from jax._src.varying import contents
from jax._src.varying import context
from jax._src.varying import dependences
from jax._src.varying import flow
from jax._src.varying import types as vt
from jax._src.varying.types import Axes, NO_AXES


class _Facts:
  """The facts of a trace's values so far.

  Attributes:
    known: the axes along which a value may differ, by its variable.
    joins: the dependences that a result joins, by the id of its equation and
      its number, with the equation.
  """

  def __init__(self, trace: Any):
    self.trace, self.steps = weakref.ref(trace), traces.steps(trace)
    self.known: dict[core.Var, Axes] = {}
    self.joins: dict[tuple[int, int], tuple[Any, list]] = {}

  def of(self, node: Any) -> Axes:
    """The axes along which the value of a node of ``steps`` may differ."""
    known, atom_of = self.known, self.steps.atom
    equation_of, operands_of = self.steps.equation, self.steps.operands
    plain = dependences.plain_operations()
    array, axes_of = core.ShapedArray, vt.axes_of_array  # in the fewest steps
    v = wanted = atom_of(node)
    if type(v) is core.Literal:
      return NO_AXES
    axes = vt.varying(v.aval)
    if v in known or not axes:
      return known.get(v, axes)
    todo: Any = None
    eqn, more = equation_of(node), NO_AXES
    while True:
      # v's fact, if what it is made of has its own by now.
      missing, found = None, NO_AXES
      if eqn is None:
        found = self._of_input(v, axes)
      elif eqn.primitive in plain and not eqn.effects:
        for x in operands_of(eqn):
          if type(u := atom_of(x)) is core.Literal:
            continue
          if u in known:
            found |= known[u]
            if axes <= found:
              break
          elif more := (axes_of(u.aval) if type(u.aval) is array else
                        vt.varying(u.aval)):
            missing = x
            break
      else:
        found, missing, more = self._of_other(
            v, axes, eqn, operands_of(eqn))
      if missing is not None:
        todo = v, axes, eqn, todo
        v, axes, eqn = atom_of(missing), more, equation_of(missing)
        continue
      known[v] = axes & found
      if v is wanted:
        return known[v]
      v, axes, eqn, todo = todo

  def _of_other(self, v: core.Var, axes: Axes, eqn: Any, operands: Sequence[Any]
                ) -> tuple[Axes, Any, Axes]:
    """The axes of a result, or an operand whose fact is lacking, with its."""
    if axes <= dependences.reduced_over(eqn):
      return NO_AXES, None, NO_AXES
    n = eqn.outvars.index(v)
    if (id(eqn), n) not in self.joins:  # with the equation, so that it stays
      self.joins[id(eqn), n] = eqn, dependences.of_result(eqn, n, len(operands))
    missing, more, first = None, NO_AXES, 0

    def differ(n: int) -> Axes:
      nonlocal missing, more
      if missing is not None:
        return axes  # for the search to end
      atom = self.steps.atom(operands[n + first])
      if type(atom) is core.Literal or not (own := vt.varying(atom.aval)):
        return NO_AXES
      if atom in self.known:
        return self.known[atom]
      missing, more = operands[n + first], own
      return axes

    found = NO_AXES
    for dependence, first in self.joins[id(eqn), n][1]:
      found |= dependence.axes(differ, lambda n: vt.varying(
          self.steps.atom(operands[n + first]).aval), limit=axes)
      if missing is not None or axes <= found:
        break
    return found, missing, more

  def _of_input(self, v: core.Var, axes: Axes) -> Axes:
    trace: Any = self.trace()
    frame = trace.frame
    if v in frame.constvar_to_val:
      outer = traces.captured(trace, v)
      return differs(outer) if isinstance(outer, core.Tracer) else axes
    if trace in given_in_order:
      n = frame.invars.index(v)
      facts = given_in_order[trace]
      return facts[n] if n < len(facts) else axes
    if v in given.get(trace, ()):
      return given[trace][v]
    if vt.nontrivial(axes):
      asked.setdefault(trace, set()).add(v)
    return axes


# By a function's trace, the axes along which its arguments may differ, if its
# caller says, in their order or by variable; if not, those asked about.
given_in_order: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
given: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
asked: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
_facts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def give(x: Any, axes: Axes) -> core.Var | None:
  """Says along which axes an argument of a function may differ.

  Args:
    x: the argument, as the function has it, which may be traced.
    axes: the axes.

  Returns:
    The input of the function's jaxpr that it is, if it is one.
  """
  inner = traces.innermost(x)
  frame = getattr(getattr(inner, '_trace', None), 'frame', None)
  if frame is None and isinstance(inner, core.Tracer):
    _remember_of(inner, varying(inner) - axes)
  if frame is not None:
    steps = facts_of(inner._trace).steps
    v = steps.atom(steps.node(inner))
    if v in frame.invars:
      given.setdefault(inner._trace, {})[v] = axes
      return v
  return None


def facts_of(trace: Any) -> _Facts:
  try:
    return _facts[trace]
  except KeyError:
    _facts[trace] = facts = _Facts(trace)
    return facts


def varying(x: Any) -> Axes:
  """The axes that a value's type names; none of what is no tracer."""
  return vt.varying(vt.typeof(x)) if isinstance(x, core.Tracer) else NO_AXES


def differs(x: Any) -> Axes:
  """The axes along which a value may differ, of those that its type names."""
  trace = getattr(x, '_trace', None)
  if not hasattr(trace, 'frame'):
    x = traces.innermost(x)
    if not isinstance(x, core.Tracer):
      return NO_AXES
    trace = x._trace
    if not hasattr(trace, 'frame'):  # it isn't traced to a jaxpr
      return varying(x) - _remembered(x)
  facts = facts_of(trace)
  return facts.of(facts.steps.node(x))


# By the id of a tracer of an eager shard_map, with a reference to it: the axes
# along which it is the same, of those that it varies over.
_same_along: dict[int, tuple[weakref.ref, Axes]] = {}


def _remembered(x: Any) -> Axes:
  reference, axes = _same_along.get(id(x), (None, NO_AXES))
  return axes if reference is not None and reference() is x else NO_AXES


class Bound(NamedTuple):
  """A primitive that is bound, as an equation has it."""
  primitive: core.Primitive
  params: dict[str, Any]
  outvars: Sequence[Any]
  effects: Any = frozenset()


def executing() -> bool:
  """True while an eager ``shard_map`` runs what was bound, facts at hand."""
  return context.running.now.executing


def remembering(process):
  """Has an eager ``shard_map``'s trace remember which results agree.

  Args:
    process: ``ShardMapTrace.process_primitive``.
  """
  @functools.wraps(process)
  def process_primitive(self, prim, tracers, params):
    result = context.run('executing', process, self, prim, tracers, params)
    if vt.checking():
      outs = result if prim.multiple_results else [result]
      jaxprs = map(vt.open_jaxpr, contents.jaxprs_in(params))
      effects = flow.union(j.effects for j in jaxprs)
      _remember(Bound(prim, params, outs, effects), tracers)
    return result
  return process_primitive


def _remember(eqn: Bound, tracers: Sequence[Any]) -> None:
  varying = [vt.varying(vt.typeof(out)) for out in eqn.outvars]
  if not any(varying):
    return
  found = dependences.of_results(
      eqn, list(map(dependences.on_input, range(len(tracers)))))
  for out, axes, dependence in zip(eqn.outvars, varying, found):
    same = axes and axes - dependence.axes(
        lambda n: differs(tracers[n]),
        lambda n: vt.varying(vt.typeof(tracers[n])), limit=axes)
    if isinstance(out, core.Tracer):
      _remember_of(out, same)


def _remember_of(x: core.Tracer, same: Axes) -> None:
  if same:
    key = id(x)
    forget: Callable = functools.partial(_forget, key)
    reference = weakref.ref(x, forget)
    _same_along[key] = reference, same


def _forget(key: int, unused_reference: Any) -> None:
  _same_along.pop(key, None)
