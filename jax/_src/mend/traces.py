# SPDX-License-Identifier: Apache-2.0
"""The traces around a value, and the tracers within one.

A transformation's trace has that around it as its parent, and its tracer holds
a value of that one. What is traced to a jaxpr has a parent from 0.6.2 on.
Before, it has none, and a walk outwards ends there, but where a batch names
mesh axes (``vmap(..., spmd_axis_name=)``): there an edit to
``DynamicJaxprTrace`` keeps the parent in its frame, so that the walk sees what
it does on later releases. An eager ``shard_map`` has no parent on any.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import operator
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import release_types
from jax._src import source_info_util

typeof = release_types.typeof()


def is_ref_type(aval: Any) -> bool:
  """True of a mutable reference's type; it holds its content's type."""
  return hasattr(aval, 'inner_aval')


def is_ref(x: Any) -> bool:
  """True of a mutable reference, and of a tracer that stands for one."""
  return is_ref_type(typeof(x))


def enclosing(trace: Any) -> Iterator[Any]:
  """A trace and those around it, from the inside, as far as they are known."""
  while trace is not None:
    yield trace
    trace = getattr(trace, 'parent_trace', None) or getattr(
        getattr(trace, 'frame', None), 'parent_trace', None)


def is_transformation(trace: Any) -> bool:
  """True if a trace passes on what it binds to another, transformed."""
  return hasattr(trace, 'parent_trace') and not hasattr(trace, 'frame')


def is_staged(trace: Any) -> bool:
  """True if what is bound becomes a jaxpr, and isn't executed."""
  from jax._src.interpreters import partial_eval as pe  # imports core
  return any(isinstance(t, pe.DynamicJaxprTrace) for t in enclosing(trace))


def retraceable(fun: Any) -> None:
  """Lets a function that has been traced be traced once more.

  Args:
    fun: a ``linear_util.WrappedFun``, whose stores are filled by then, or any
      other function.
  """
  for store in getattr(fun, 'stores', ()):
    if store is not None:
      store.reset()


def held(tracer: Any) -> Any:
  """The value that a transformation's tracer holds, None if it holds none."""
  if hasattr(tracer, 'primal'):
    return tracer.primal
  return getattr(tracer, 'val', None)


def set_type(tracer: Any, aval: Any) -> None:
  """Gives another type to a tracer that doesn't ask its value for it.

  The type that a tracer of a jaxpr has is private in 0.9.2.
  """
  owner = getattr(type(tracer), 'aval', None)
  if not isinstance(owner, property):
    tracer.aval = aval
  elif hasattr(tracer, '_aval'):
    tracer._aval = aval


def layers(x: Any) -> Iterator[core.Tracer]:
  """The tracers that a value consists of, from the outside."""
  while isinstance(x, core.Tracer):
    yield x
    x = held(x)


def captured(trace: Any, v: core.Var) -> Any:
  """The value outside that a variable of a traced function stands for.

  0.8.1 keeps it in a pair with the value as it was given.
  """
  value = trace.frame.constvar_to_val.get(v)
  return getattr(value, 'canonical', value)


def innermost(x: Any) -> Any:
  """The innermost tracer that a value consists of; itself if it is none."""
  *_, x = layers(x) if isinstance(x, core.Tracer) else (x,)
  return x


# The equation that made a value, and what its operands are found by.
_Pair = tuple[Any, Sequence[Any]]


class _ByTracer:
  """The steps of a trace whose tracers know their equations: from 0.7 on."""

  def __init__(self, trace: Any):
    del trace

  @staticmethod
  def node(tracer: Any) -> Any:
    return tracer

  # In the fewest steps.
  atom = staticmethod(operator.attrgetter('val'))
  equation = staticmethod(operator.attrgetter('parent'))
  operands = staticmethod(operator.attrgetter('in_tracers'))

  @staticmethod
  def equations(trace: Any) -> Iterator[_Pair]:
    for held in trace.frame.tracing_eqns:
      eqn = held() if callable(held) else held
      if eqn is not None:
        yield eqn, eqn.in_tracers


class _ByVariable:
  """The steps of a trace whose frame has the equations: before 0.7."""

  def __init__(self, trace: Any):
    self.frame, self.seen = trace.frame, 0
    self.made_by: dict[core.Var, Any] = {}

  def node(self, tracer: Any) -> Any:
    return self.frame.tracer_to_var[id(tracer)]

  @staticmethod
  def atom(node: Any) -> Any:
    return node

  operands = staticmethod(operator.attrgetter('invars'))

  def equation(self, node: Any) -> Any:
    eqns = self.frame.eqns
    for eqn in eqns[self.seen:]:
      self.made_by.update(dict.fromkeys(eqn.outvars, eqn))
    self.seen = len(eqns)
    return self.made_by.get(node)

  @staticmethod
  def equations(trace: Any) -> Iterator[_Pair]:
    for eqn in trace.frame.eqns:
      yield eqn, eqn.invars


def steps(trace: Any) -> _ByTracer | _ByVariable:
  """Finds what made the values of a trace to a jaxpr.

  Args:
    trace: the trace, which may go on.

  Returns:
    An object that has ``node``, by which the value of a tracer is found,
    ``atom`` of a node, and its ``equation``, None if none made it; ``operands``
    are the nodes that an equation was applied to, and ``equations`` gives all
    so far, in order, each with these.
  """
  by_variable = hasattr(trace.frame, 'tracer_to_var')
  return (_ByVariable if by_variable else _ByTracer)(trace)


class Step(NamedTuple):
  """The equation that made a value, its operands, and the result's number."""
  eqn: Any
  operands: Sequence[Any]
  n: int


def steps_of(tracer: Any) -> Callable[[Any], Step | None]:
  """Finds the step that made a value, in the jaxpr of a tracer.

  A tracer knows its equation from 0.7 on. Before, its frame has the equations,
  and gives the results of what was inlined no tracer.
  """
  trace = tracer._trace
  if hasattr(trace.frame, 'tracer_to_var'):
    return _steps_by_variable(trace)

  def step_of(x):
    eqn = x.parent
    return eqn and Step(eqn, eqn.in_tracers, eqn.outvars.index(x.val))
  return step_of


def _steps_by_variable(trace: Any) -> Callable[[Any], Step | None]:
  from jax._src.interpreters import partial_eval as pe  # imports core
  frame, variables = trace.frame, trace.frame.tracer_to_var
  values = {variables[id(t)]: t for t in frame.tracers
            if type(variables.get(id(t))) is core.Var}
  found = {v: (eqn, n) for eqn in frame.eqns for n, v in enumerate(eqn.outvars)}

  def value(v):
    if type(v) is not core.Var:
      return v
    if v not in values:
      values[v] = x = pe.DynamicJaxprTracer(
          trace, v.aval, source_info_util.current())
      frame.tracers.append(x)
      variables[id(x)] = v
    return values[v]

  def step_of(x):
    v = variables[id(x)]
    eqn, n = found.get(v if type(v) is core.Var else None, (None, 0))
    return eqn and Step(eqn, list(map(value, eqn.invars)), n)
  return step_of
