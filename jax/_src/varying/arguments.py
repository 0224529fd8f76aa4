# SPDX-License-Identifier: Apache-2.0
"""Facts of arguments, for the function that is called with them.

A function is traced to a jaxpr at its arguments' types, which don't say along
which axes an argument agrees (``agreement``). Mostly no predicate in it depends
on an argument that does, and the trace is right as it is. So a call of
``scan``, ``while_loop``, ``cond``, ``jit``, ``checkpoint``, a custom derivative
or a linear solve, in whose function a predicate was asked about, is looked at
once more before it is bound: if an argument agrees along more axes than was
taken for granted, the outermost such call is made again, and each function in
it is given the facts of its arguments. They are part of the keys of tracing
caches then. What was refused for want of them is refused after that alone.

A loop's carry is taken to agree as its initial value does. If what the body
makes of that doesn't, the loop is traced again with as much less.

Limits: a call whose arguments aren't those of the function, as static ones,
gives no facts; so does a function that another library traces.

Cost: for the outermost call a frame on the stack, as long as nothing is asked;
otherwise a look at the equations of each function. What is traced again is so
once, nested calls included, but for loops whose carry agrees less.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
import threading
from typing import Any
import weakref

from jax._src import core
from jax._src.mend import pages
from jax._src import tree_util
from jax._src.varying import agreement
from jax._src.varying import context
from jax._src.varying import dependences
from jax._src.varying import divergence
from jax._src.varying import flow
from jax._src.varying import notes
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


BY_FUNCTION = object()  # in place of a carry: ``given`` gives the facts


class _Call:
  """A call of a function with arguments.

  Attributes:
    trace: where it is made.
    arguments: a tree of them.
    carries: of a loop, the number of leaves of its carry, which come first.
    gives: whether the functions that it traces are given these arguments.
    facts: the axes along which each leaf may differ; None if they aren't given.
  """

  def __init__(self, arguments: Any, carry: Any):
    self.trace = core.trace_ctx.trace
    self.arguments = arguments
    self.gives = carry is not BY_FUNCTION
    self.carries = len(tree_util.tree_leaves(carry)) if self.gives else 0
    self.facts: tuple[Axes, ...] | None = None

  def leaves(self, count: int) -> list[Any] | None:
    """The arguments, if they are as many, static ones aside."""
    leaves = tree_util.tree_leaves(self.arguments)
    if len(leaves) != count:
      leaves = [x for x in leaves if hasattr(x, 'dtype')]
    return leaves if len(leaves) == count else None


class _Asked(Exception):
  """A predicate depends on an argument that agrees, as isn't known inside."""


class _Weaker(Exception):
  """A loop's carry agrees along fewer axes than its initial value."""

  def __init__(self, call: _Call, facts: tuple[Axes, ...]):
    super().__init__()
    self.call, self.facts = call, facts


class _State(threading.local):
  """The calls that are under way.

  Attributes:
    own: whether the next call is ``giving``'s own.
    inside: whether there is one.
    careful: whether each is to give its facts.
    call: the innermost that a function may be traced for.
  """
  own = inside = careful = False
  call: _Call | None = None


_state = _State()
# The traces of functions that are called so, and the calls.
_traces: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def begins() -> bool:
  """True if the call that begins must go through ``giving``."""
  if _state.own:
    _state.own = False
    return False
  if _state.inside and not _state.careful:
    return False
  return vt.checking()


def asks(parameters: Any) -> bool:
  """``begins``, of a jitted function's call.

  Args:
    parameters: those that jit has kept of another call; None if it has none.
  """
  return (parameters is None or _asking(parameters) is not None) and begins()


def giving(api: Callable, arguments: Any, carry: Any, /, *args,
           **kwargs) -> Any:
  """Calls a function that traces another, which may ask about its arguments.

  Args:
    api: what is called, which asks ``begins`` first of all.
    arguments: the tree of the arguments of the function that it traces.
    carry: of a loop, those that are its carry, which come first.
    *args: the arguments of ``api``, and ``kwargs``.

  Returns:
    What ``api`` returns.
  """
  call = _Call(arguments, carry)
  around, _state.call = _state.call, call
  outermost = not _state.inside
  _state.inside = True
  try:
    if not outermost:
      return _careful(call, api, args, kwargs)
    try:
      _state.own = True
      return _unasked(call, api(*args, **kwargs))
    except _Asked:
      refusal = None
    except (TypeError, ValueError) as e:
      if not (agreement.asked or divergence.is_refusal(e)):
        raise
      refusal = e
    agreement.asked.clear()
    _state.careful = True
    try:
      return _careful(call, api, args, kwargs)
    except (TypeError, ValueError):
      if refusal is None:
        raise
      raise refusal from None
  finally:
    _state.call, _state.own = around, False
    if outermost:
      _state.inside = _state.careful = False
      agreement.asked.clear()


def elsewhere(infer_params: Callable) -> Callable:
  """``_infer_params`` of a function that will be applied to other arguments."""
  def infer(*args):
    around, _state.call = _state.call, None
    _state.own = True  # so that it isn't a call that begins
    try:
      return infer_params(*args)
    finally:
      _state.call, _state.own = around, False
  return infer


def _careful(call: _Call, api: Callable, args, kwargs) -> Any:
  """The call, with the facts of its arguments."""
  leaves = tree_util.tree_leaves(call.arguments)
  facts = tuple(map(agreement.differs, leaves))
  if call.carries or call.gives and any(
      vt.nontrivial(agreement.varying(x) - f) for x, f in zip(leaves, facts)):
    call.facts = facts
  before = context.swap('facts', call.facts)
  try:
    while True:
      try:
        _state.own, _state.call = True, call
        return api(*args, **kwargs)
      except _Weaker as e:
        if e.call is not call:
          raise
        call.facts = e.facts
        context.swap('facts', call.facts)
  finally:
    context.swap('facts', before)


def begun(trace: core.Trace) -> None:
  """Notes which call a function is traced for, as its trace begins."""
  call = _state.call
  if call is None:
    return
  around = core.trace_ctx.trace
  if call.trace is around:
    _traces[trace] = call
    if call.facts is not None:
      agreement.given_in_order[trace] = call.facts
      # They aren't those of another function's inside.
      context.swap('facts', None)
  elif not _state.careful and around is core.eval_trace:  # while it is bound
    _traces[trace] = call


def ended(trace: core.Trace, traced: tuple) -> tuple:
  """A trace's jaxpr, which is the first of ``traced``, with what it asks.

  Raises:
    _Asked: if an argument in question agrees.
    _Weaker: if a carry doesn't agree as its initial value does.
  """
  if not _state.inside:
    return traced
  jaxpr, *others = traced
  call = _traces.pop(trace, None)
  if _state.careful:
    seen = _seen.pop(trace, None)
    if seen:
      new = _renamed(trace, jaxpr)
      trusts = {new.get(v, v): a for v, a in seen.get('trusts', {}).items()}
      return notes.with_note(jaxpr, **{**seen, 'trusts': trusts}), *others
    if call is not None and call.facts is not None:
      agreement.given_in_order.pop(trace, None)
      context.swap('facts', call.facts)
      if call.carries and len(call.facts) == len(jaxpr.invars) and (
          call.carries <= len(jaxpr.outvars)):
        _check_carry(call, trace, jaxpr, others)
    return traced
  if agreement.asked or any_asks:
    _ask_of_calls(trace)
  asks = agreement.asked.pop(trace, None)
  if not asks:
    return traced
  new = _renamed(trace, jaxpr)
  asks = frozenset(new.get(v, v) for v in asks)
  if call is not None:
    leaves = call.leaves(len(jaxpr.invars)) or ()
    for v, x in zip(jaxpr.invars, leaves):
      if v in asks:
        _ask(v, agreement.differs(x))
  any_asks[:] = [True]
  return notes.with_note(jaxpr, asks=asks), *others


def _renamed(trace: Any, jaxpr: core.Jaxpr) -> dict[core.Var, core.Var]:
  """The inputs of a jaxpr by those of its trace, which 0.6 names anew."""
  given = trace.frame.invars
  return dict(zip(given, jaxpr.invars[len(jaxpr.invars) - len(given):]))


any_asks: list[bool] = []  # whether a jaxpr was ever noted to


def _ask(v: core.Var, differ: Axes) -> None:
  if vt.nontrivial(vt.varying(v.aval) - differ):
    raise _Asked


def _questions(eqn: Any):
  """The inputs of functions in an equation that are asked about.

  Yields:
    The input, and the number of the operand that it is.
  """
  for number, jaxpr in enumerate(dependences.inner(eqn)):
    note = notes.note_of(jaxpr)
    if note is not None and note.asks:
      for n, v in enumerate(jaxpr.invars):
        if v in note.asks:
          place = dependences.operand_of(eqn, number, n)
          if place is not None:
            yield v, place


def _ask_of_calls(trace: core.Trace) -> None:
  """Looks at the functions that a trace has called, whoever traced them."""
  facts = agreement.facts_of(trace)
  for eqn, operands in facts.steps.equations(trace):
    if eqn.params:
      for v, n in _questions(eqn):
        _ask(v, facts.of(operands[n]))


def _unasked(call: _Call, result: Any) -> Any:
  """The result of ``_infer_params``, whose jaxpr may be one that jit has kept.

  Raises:
    _Asked: if an argument that it asks about agrees.
  """
  if any_asks and type(result) is tuple and len(result) == 2 and (
      jaxpr := _asking(result[0])) and len(result[1]) == len(jaxpr.invars):
    note = notes.note_of(jaxpr)
    asks = note.asks if note is not None else ()
    for v, x in zip(jaxpr.invars, result[1]):
      if v in asks:
        _ask(v, agreement.differs(x))
  return result


def _asking(parameters: Any) -> core.Jaxpr | None:
  """The jaxpr in a jitted function's parameters, if it asks."""
  params = getattr(parameters, 'params', None)
  if not isinstance(params, dict) or 'jaxpr' not in params:
    return None
  jaxpr = vt.open_jaxpr(params['jaxpr'])
  note = notes.note_of(jaxpr)
  return jaxpr if note is not None and note.asks else None


def _check_carry(call: _Call, trace: Any, jaxpr: core.Jaxpr, others) -> None:
  """Raises _Weaker if the body makes a carry differ along more axes."""
  known, constants = dependences.of_values(jaxpr), {}
  given = call.facts or ()
  for values in others:
    if isinstance(values, list) and len(values) == len(jaxpr.constvars):
      constants = dict(zip(jaxpr.constvars, values))
      break
  inputs = [*jaxpr.invars, *jaxpr.constvars]

  def differ(n: int) -> Axes:
    axes = vt.varying(inputs[n].aval)
    if n < len(jaxpr.invars):
      return axes & given[n]
    x = constants.get(inputs[n])
    return axes if x is None else axes & agreement.differs(x)

  facts = list(given)
  for n, v in enumerate(jaxpr.outvars[:call.carries]):
    axes = vt.varying(v.aval)
    facts[n] |= axes & dependences.of_atom(known, v).axes(
        differ, lambda n: vt.varying(inputs[n].aval))
  if facts != list(given):
    raise _Weaker(call, tuple(facts))


def _given(function: Callable, arguments: tuple, facts: list[Axes],
           trusts: bool = False) -> Callable:
  """A function that is given facts of its last arguments."""
  @functools.wraps(function)
  def function_given(*args, **kwargs):
    inside = args[len(args) - len(arguments):] if arguments else ()
    leaves = tree_util.tree_leaves(inside)
    if len(leaves) == len(facts):
      for x, axes in zip(leaves, facts):
        v = agreement.give(x, axes)
        if v is not None and trusts:
          seen = _seen.setdefault(core.trace_ctx.trace, dict(trusts={}))
          seen['trusts'][v] = axes
    return function(*args, **kwargs)
  return function_given


# What the jaxprs of traces are to have as their notes.
_seen: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def of_solve(b: Any, solve: Callable, transpose_solve: Callable | None = None
             ) -> tuple[Callable, Callable | None]:
  """The functions of a linear solve, given that what they solve for agrees.

  The first is applied to tangents, too, and the second to cotangents. They are
  asked about there (``check_solve``), and what is refused of the second is so
  where it is applied.

  Args:
    b: the right-hand side, where the solve is called.
    solve: takes an operator and the right-hand side.
    transpose_solve: the same for the transpose.
  """
  if not _state.careful:
    return solve, transpose_solve
  facts = list(map(agreement.differs, tree_util.tree_leaves(b)))
  least = [flow.union(facts)] * len(facts)
  return (_given(solve, (b,), facts, True), transpose_solve and _given(
      _refused_later(transpose_solve), (b,), least, True))


def _refused_later(function: Callable) -> Callable:
  """A function that is refused where what was traced of it is applied."""
  @functools.wraps(function)
  def traced(*args):
    try:
      return function(*args)
    except ValueError as e:
      if not divergence.is_refusal(e):
        raise
      _seen.setdefault(core.trace_ctx.trace, {})['refusal'] = e
      with divergence.allow(True):
        return function(*args)
  return traced


def check_solve(bind: Callable) -> Callable:
  """``linear_solve_p.bind``, with a look at what the solver takes to agree."""
  def checked(*args, **params):
    jaxprs = params['jaxprs']
    jaxpr = vt.open_jaxpr(jaxprs.solve)
    note = notes.note_of(jaxpr)
    if agreement.executing():
      note = None
    if note is not None and note.refusal:
      raise note.refusal
    if note is not None and note.trusts:
      own = params['const_lengths'].solve
      first = len(args) - len(jaxpr.invars) + own
      grown = [vt.nontrivial(agreement.differs(x) - note.trusts.get(
          v, vt.varying(v.aval)))
               for v, x in zip(jaxpr.invars[own:], args[first:])]
      if any(grown):
        params['jaxprs'] = jaxprs._replace(solve=vt.reclose(
            jaxprs.solve, _trusting_less(jaxpr, own, grown)))
    return bind(*args, **params)
  return checked


def _trusting_less(jaxpr: core.Jaxpr, own: int, grown: list[Axes]
                   ) -> core.Jaxpr:
  """A solver whose predicates may differ as what it solves for does.

  Args:
    jaxpr: the solver.
    own: the number of its constants, which come first.
    grown: of each other input, the axes along which it has come to differ.

  Raises:
    ValueError: it communicates where devices diverge then, or its solution
      would vary over more axes.
  """
  region = flow.Region(jaxpr)
  if not region.agrees:  # no predicate in it is taken to agree
    return jaxpr
  types = region.traced
  facts = [*types[:own], *grown]
  region.facts = facts.__getitem__
  # As if they hadn't varied over these axes when it was traced.
  region.traced = [*types[:own], *map(Axes.difference, types[own:], grown)]
  refusal = None
  try:
    outs = region.run(types)[:len(grown)]
    flow.check_divergence(region.sites.values())
    if outs == [vt.varying(v.aval) for v in jaxpr.outvars[:len(grown)]]:
      return retype.rebuild(region)
  except ValueError as e:
    if not divergence.is_refusal(e):
      raise
    refusal = e
  raise divergence.refusal(
      'lax.custom_linear_solve: expected a right-hand side, tangent or '
      'cotangent that is the same on all devices along '
      f'{vt.ordered(flow.union(grown))}, as the solver takes as many steps as '
      'it says and communicates in them; got one that may differ. Make it the '
      'same, for example with jax.lax.psum or jax.lax.pmean.' +
      pages.see('varying_primitives.md#solves-and-roots')) from refusal


def custom(rule: Any) -> Callable:
  """Calls a function with derivative rules, given the facts of its arguments.

  Args:
    rule: a ``custom_jvp`` or ``custom_vjp``, whose calls go through ``giving``.
  """
  def call(*args, **kwargs):
    copied = rule
    if _state.careful:
      copied = object.__new__(type(rule))
      copied.__dict__.update(rule.__dict__)
      copied.fun = _given(rule.fun, args, list(map(
          agreement.differs, tree_util.tree_leaves(args))))
    return copied(*args, **kwargs)
  return call
