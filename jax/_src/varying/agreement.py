# SPDX-License-Identifier: Apache-2.0
"""Along which axes a value at hand may differ between devices.

A type can only say that a value varies: what ``all_gather`` returns does, and
what is cast does, although each device has the same. That a value agrees along
an axis of its type is a fact of its own, made of its operands' facts: what
doesn't vary agrees, so does what is computed of that alone (``dependences``),
and what a gather or a reduction over the axis returns. It is found when it is
first asked for, and kept with the trace, one set of axes for a value. What a
traced function captures has the fact that it has outside.

A function's argument has no fact while the function is traced. It ``differs``
along all that its type names, if types are asked about. It ``surely_differs``
along none, if a refusal is: what is known of the operand that it will be is
asked where that is bound (``requirements``). Those of a ``shard_map``'s own
function surely differ along their types.

An eager ``shard_map`` traces nothing; there, each value's fact is found as it
is computed.

Cost: one visit of each equation that a value that is asked for is computed by,
as far as it agrees: the walk ends where a value differs along all its axes.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple
import weakref

from jax._src import core
from jax._src.mend import jitted
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
    of_value: gives the fact of a value outside, ``differs`` or
      ``surely_differs``.
    known: the axes along which a value may differ, by its variable.
    joins: the dependences that a result joins, by the id of its equation and
      its number, with the equation.
  """

  def __init__(self, trace: Any, of_value: Callable[[Any], Axes]):
    self.of_value = of_value
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
    if v in trace.frame.constvar_to_val:
      outer = traces.captured(trace, v)
      return self.of_value(outer) if isinstance(outer, core.Tracer) else axes
    if self.of_value is surely_differs:
      return axes & _mapped.get(trace, NO_AXES)
    return axes


# By the trace of a shard_map's own function, the axes that it makes manual.
_mapped: Any = weakref.WeakKeyDictionary()
_facts: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def mapped(trace: Any, axes: Axes) -> None:
  """Notes that a trace is of a shard_map's own function.

  Args:
    trace: the trace.
    axes: the axes that the shard_map makes manual.
  """
  _mapped[trace] = axes


def agrees(x: Any, axes: Axes) -> None:
  """Notes the axes along which an argument agreed when it was made.

  What is made where it is asked about has its own fact, and in a map of the
  user's every value is; who holds a pullback may have changed what it keeps. An
  argument of a function that is traced for itself is judged where that is
  bound. Those of a derived map have no other fact.

  Args:
    x: the value.
    axes: the axes.
  """
  x = traces.innermost(x)
  trace: Any = getattr(x, '_trace', None)
  if not isinstance(x, core.Tracer) or trace in _called:
    return
  if not hasattr(trace, 'frame'):
    _remember_of(traces.held(x), axes)
    return
  for of_value in differs, surely_differs:
    facts = _facts_of(trace, of_value)
    node = facts.steps.node(x)
    v = facts.steps.atom(node)
    if v in trace.frame.constvar_to_val:
      agrees(traces.captured(trace, v), axes)
    elif type(v) is core.Var and (
        trace in _mapped or facts.steps.equation(node) is None):
      facts.known[v] = vt.varying(v.aval) - axes


# The traces of those maps that call a function of the user's.
_called: Any = weakref.WeakSet()


def calling(f: Callable[..., Any]) -> Callable[..., Any]:
  """The user's function of a ``shard_map``.

  Another's is derived of one: a transpose or a tangent. What has been claimed
  of its inputs was judged of the same values, in the map that it is derived of.

  Args:
    f: the function.

  Returns:
    A function of the same arguments and results.
  """
  @functools.wraps(f)
  def call(*args, **kwargs):
    for trace in traces.enclosing(core.trace_ctx.trace):
      if not traces.is_transformation(trace):
        _called.add(trace)
        break
    return f(*args, **kwargs)
  return jitted.passing_on(call, f)


def is_own(trace: Any) -> bool:
  """True of the trace of a shard_map's own function."""
  return trace in _mapped


def is_for_later(x: Any) -> bool:
  """True of a value of a function that is traced for itself."""
  trace = getattr(x, '_trace', None)
  if not hasattr(trace, 'frame'):
    trace = getattr(traces.innermost(x), '_trace', None)
  return hasattr(trace, 'frame') and weakref.ref(trace) not in _mapped.data


def is_derived(trace: Any) -> bool:
  """True of a trace in a map that calls no function of the user's.

  It is also true where it isn't known which map that is, before 0.6.2.
  """
  for around in traces.enclosing(trace):
    if around in _mapped:
      return around not in _called
  return hasattr(trace, 'frame')


def _facts_of(trace: Any, of_value: Callable[[Any], Axes]) -> _Facts:
  known = _facts.get(trace)
  if known is None:
    known = _facts.setdefault(trace, {})
  if of_value not in known:
    known[of_value] = _Facts(trace, of_value)
  return known[of_value]


def varying(x: Any) -> Axes:
  """The axes that a value's type names; none of what is no tracer."""
  return vt.varying(vt.typeof(x)) if isinstance(x, core.Tracer) else NO_AXES


def differs(x: Any) -> Axes:
  """The varying axes of a value's type along which the value may differ."""
  return _fact(x, differs)


def surely_differs(x: Any) -> Axes:
  """Those along which it may, whatever the arguments of functions are."""
  return _fact(x, surely_differs)


def _fact(x: Any, of_value: Callable[[Any], Axes]) -> Axes:
  trace = getattr(x, '_trace', None)
  if not hasattr(trace, 'frame'):
    x = traces.innermost(x)
    if not isinstance(x, core.Tracer):
      return NO_AXES
    trace = x._trace
    if not hasattr(trace, 'frame'):  # it isn't traced to a jaxpr
      return varying(x) - _remembered(x)
  facts = _facts_of(trace, of_value)
  return facts.of(facts.steps.node(x))


# By the id of the array that a tracer of an eager shard_map holds, with a
# reference to it: the axes along which devices have the same, of those that it
# varies over. A rule's function is called with other tracers of the same array.
_same_along: dict[int, tuple[weakref.ref, Axes]] = {}


def _remembered(x: Any) -> Axes:
  array = traces.held(x)
  reference, axes = _same_along.get(id(array), (None, NO_AXES))
  return axes if reference is not None and reference() is array else NO_AXES


class Bound(NamedTuple):
  """A primitive that is bound, as an equation has it."""
  primitive: core.Primitive
  params: dict[str, Any]
  outvars: Sequence[Any]
  effects: Any = frozenset()
  invars: Sequence[Any] = ()
  source_info: Any = None


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
    if same and isinstance(out, core.Tracer):
      _remember_of(traces.held(out), same)


def _remember_of(array: Any, same: Axes) -> None:
  key = id(array)
  forget: Callable = functools.partial(_forget, key)
  try:
    _same_along[key] = weakref.ref(array, forget), same
  except TypeError:  # a number, or a ref
    pass


def _forget(key: int, unused_reference: Any) -> None:
  _same_along.pop(key, None)
