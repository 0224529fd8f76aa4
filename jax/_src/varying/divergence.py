# SPDX-License-Identifier: Apache-2.0
"""Refuses collectives that only some of their devices reach.

Where a loop's predicate or a branch's index varies over a mesh axis, devices
along that axis diverge, if there are several (``types.nontrivial``). A
collective over that axis inside then waits for devices that never come, or
pairs with another one's buffer. What has to agree, so that none does, is a
requirement (``requirements``). It is judged at each equation that is bound, of
the values at hand: one that surely fails is refused, with the lines of the
predicate, of the collective, and of the call that decides. One that depends on
an argument of the function that is being traced waits for the call. What has
waited until the ``shard_map`` ends is judged there (``Map``), and in an eager
one as it runs.

Collectives over other axes are fine; for ppermute, which on CPU waits for every
device of the mesh, ``rules.permute`` sees to that.

Not seen: collectives inside a kernel or a foreign call, and those of a
custom_vjp's backward rule until it is differentiated.

Cost: nothing as long as no predicate is in question.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

from jax._src import config
from jax._src import core
from jax._src import linear_util as lu
from jax._src.mend import anatomy
from jax._src.mend import pages
from jax._src.mend import source_lines
from jax._src.mend import trace_key
from jax._src import mesh as mesh_lib
from jax._src import source_info_util
from jax._src.varying import agreement
from jax._src.varying import contents as contents_lib
from jax._src.varying import context
from jax._src.varying import dependences
from jax._src.varying import notes
from jax._src.varying import requirements
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying.contents import contents, named_axes
from jax._src.varying.types import Axes, NO_AXES

allow = trace_key.option(
    config.bool_state, 'jax_allow_divergent_collectives', False,
    'Inside shard_map with the check on, admit collectives in loops and '
    'branches whose predicate is typed as varying over the same mesh axis. '
    'They deadlock or mix values unless the predicate is in fact the same on '
    'all devices along that axis.')


def judge(trace: core.Trace, prim: core.Primitive, params: dict[str, Any],
          args: Sequence[Any]) -> None:
  """Refuses what is about to be bound, if a requirement of it surely fails.

  Args:
    trace: what binds it, which stages or executes it.
    prim: the primitive.
    params: its parameters.
    args: its operands.

  Raises:
    DivergentDerivativeError: for a sum that a derivative makes. Where it can be
      mended by tracing again, also if it isn't sure that it fails.
    ValueError: for anything else. The option
      ``jax_allow_divergent_collectives`` admits collectives.
  """
  if agreement.executing():
    return
  types = list(map(agreement.varying, args))
  eqn = agreement.Bound(prim, params, (), invars=args,
                        source_info=source_info_util.current())
  surely = lambda n: agreement.surely_differs(args[n])
  maybe = lambda n: agreement.differs(args[n])
  for r in requirements.of_equation(eqn, types):
    requirements.note()
    if context.running.now.judged_later or _is_admitted(r):
      continue
    if r.kind == requirements.DOUBTED:
      if not hasattr(trace, 'frame') and (
          axes := r.agrees(maybe, types.__getitem__)):
        notes.in_doubt(trace, _doubt(r, axes))
      continue
    if r.kind == requirements.CLAIMED and agreement.is_derived(trace):
      continue
    at_once = (r.kind == requirements.DERIVED and
               context.keyed.value.derivatives_at_once)
    differ = maybe if at_once else surely
    if axes := r.differs(differ, types.__getitem__):
      found = _Search(r.kind, axes).in_equation(eqn, types, differ)
      raise _error(found, r.kind, axes, not at_once or bool(
          r.differs(surely, types.__getitem__)))


def _is_admitted(r: requirements.Requirement) -> bool:
  """True of a collective's requirement where the option admits collectives.

  What a type says, and so which gradients are summed, is judged all the same.
  """
  return allow.value and r.kind in (requirements.MEETS, requirements.DERIVED)


def judging(process):
  """Has an eager ``shard_map``'s trace judge what it is about to execute.

  It remembers which results agree, too (``agreement``).

  Args:
    process: ``ShardMapTrace.process_primitive``.
  """
  execute = agreement.remembering(process)

  @functools.wraps(process)
  def process_primitive(self, prim, tracers, params):
    if requirements.noted and vt.checking():
      with core.set_current_trace(self):
        judge(self, prim, params, tracers)
    return execute(self, prim, tracers, params)
  return process_primitive


class _Search(NamedTuple):
  """A search for what fails, by the kind and the axes of its requirement."""
  kind: str
  axes: Axes

  def fails(self, r: requirements.Requirement, differ: Callable[[int], Axes],
            types: Sequence[Axes]) -> bool:
    return (r.kind == self.kind and bool(r.axes & self.axes)
            and bool(r.differs(differ, types.__getitem__)))

  def in_equation(self, eqn: Any, types: Sequence[Axes],
                  differ: Callable[[int], Axes]) -> list[Any]:
    """Returns the chain of failing equations from `eqn` to the innermost.

    Args:
      eqn: the equation.
      types: the axes that its operands vary over.
      differ: gives the axes along which an operand differs.
    """
    if vt.name_of(eqn.primitive) in ('cond', 'while') and any(
        self.fails(r, differ, types)
        for r in requirements.of_predicate(eqn, types)):
      return [eqn]
    for number, part in enumerate(anatomy.inner(eqn)):
      for r, ins, own in requirements.inside(eqn, number, part, types):
        of_input = lambda n, ins=ins: ins[n].axes(differ, types.__getitem__)
        if self.fails(r, of_input, own):
          return [eqn, *self.in_jaxpr(
              vt.open_jaxpr(part.jaxpr), own, of_input)]
    return [eqn]  # a type that says that a predicate agrees

  def in_jaxpr(self, jaxpr: core.Jaxpr, types: Sequence[Axes],
               differ: Callable[[int], Axes]) -> list[Any]:
    """Finds those in a jaxpr, by the types and facts of a jaxpr's inputs."""
    known = dependences.of_values(jaxpr)
    for eqn in jaxpr.eqns:
      if not eqn.params or not requirements.may_require(eqn):
        continue
      own = [vt.varying(v.aval) for v in eqn.invars]
      facts = [a and a & dependences.of_atom(known, v).axes(
          differ, types.__getitem__) for a, v in zip(own, eqn.invars)]
      if any(self.fails(r, facts.__getitem__, own)
             for r in requirements.of_equation(eqn, own)):
        return self.in_equation(eqn, own, facts.__getitem__)
    return []


def _error(found: Sequence[Any], kind: str, axes: Axes, sure: bool
           ) -> Exception:
  """The error about a requirement that fails along these axes.

  Args:
    found: the equations that it is about, as ``_Search`` finds them.
    kind: the requirement's.
    axes: the axes.
    sure: whether it fails for sure.
  """
  *around, chosen = found
  calls = _lines(around)
  if kind == requirements.CLAIMED:
    return ValueError(_claim_message(axes, calls))
  derived, name = kind == requirements.DERIVED, vt.name_of(chosen.primitive)
  jaxprs = [vt.open_jaxpr(part.jaxpr) for part in anatomy.inner(chosen)]
  back = contents_lib.from_derivative(chosen)
  eqn = next(e for j in jaxprs for e, d in retrace.equations(j, back)
             if named_axes(e) & axes and (d or not derived))
  line = _line_of_predicate(jaxprs[0]) if name == 'while' else ''
  where = (line or source_info_util.summarize(chosen.source_info)
           or source_lines.running())
  axes &= named_axes(eqn)
  message = _message(eqn, derived, axes, _NAMES[name], where, calls)
  if derived:
    return retrace.DivergentDerivativeError(message, axes, sure)
  return ValueError(message)


def _lines(calls: Sequence[Any]) -> str:
  """The lines of the calls that hold something, from the outside."""
  lines = [source_info_util.summarize(e.source_info) for e in calls]
  return ', in '.join(dict.fromkeys(filter(None, reversed(lines))))


def _claim_message(axes: Axes, calls: str) -> str:
  along = vt.ordered(axes)
  return (
      'a function that was traced for later use (jax.closure_convert, '
      'jax.make_jaxpr) has a branch or loop by a value that was the same on '
      f'all devices along {along} then. Expected the same of what it is called '
      f'with; got a value that may differ{calls and " in " + calls}. Make it '
      f'the same, for example with jax.lax.pmax(value, {along}), or trace the '
      'function with a value that differs.' +
      pages.see('varying_errors.md#divergent-collectives'))


class Map:
  """A ``shard_map`` whose function is about to be traced.

  Its own values differ as their types say. A map is derived if no function of
  the user's is called in it: it is a transpose or a tangent of another, and
  what is claimed of its inputs was judged there, of the same values.
  """

  def __init__(self):
    self._outside = frozenset(mesh_lib.get_abstract_mesh().manual_axes)
    self._derived, self._axes = True, NO_AXES

  def tracing(self, f: Callable[..., Any]) -> Callable[..., Any]:
    """The map's function, with a note of what traces it.

    Args:
      f: it, a ``linear_util.WrappedFun`` on early releases.

    Returns:
      A function of the same kind.
    """
    if isinstance(f, lu.WrappedFun):
      return _within(f, self)

    @functools.wraps(f)
    def traced(*args, **kwargs):
      return self.run(f, args, kwargs)
    return traced

  def run(self, f, args, kwargs):
    trace = core.trace_ctx.trace
    inside = frozenset(mesh_lib.get_abstract_mesh().manual_axes)
    self._axes = inside - self._outside
    agreement.mapped(trace, self._axes)
    result = f(*args, **kwargs)
    self._derived = agreement.is_derived(trace)
    return result

  def judge(self, jaxpr: Any) -> None:
    """Judges what has waited until the function was traced.

    Args:
      jaxpr: the function, traced.

    Raises:
      ValueError: if a requirement fails, or a gradient was taken that JAX types
        otherwise.
    """
    if agreement.executing() or not requirements.noted:
      return
    jaxpr, axes = vt.open_jaxpr(jaxpr), self._axes
    types = [vt.varying(v.aval) & axes
             for v in [*jaxpr.invars, *jaxpr.constvars]]
    of_input = types.__getitem__
    for r in requirements.of_jaxpr(jaxpr):
      if r.kind == requirements.DOUBTED:
        agreeing = contents(jaxpr).takes_gradient and axes & r.agrees(
            of_input, of_input)
        if agreeing:
          raise _doubt(r, agreeing)
      elif _is_admitted(r) or (
          r.kind == requirements.CLAIMED and self._derived):
        continue
      elif found := axes & r.differs(of_input, of_input):
        raise _error(_Search(r.kind, found).in_jaxpr(jaxpr, types, of_input),
                     r.kind, found, True)


@lu.transformation2
def _within(f, traced_map, *args):
  return traced_map.run(f, args, {})


def _doubt(r: requirements.Requirement, axes: Axes) -> ValueError:
  """The error for a gradient inside, of what a predicate in doubt decides."""
  along = vt.ordered(axes)
  return ValueError(
      f'the predicate of a branch or loop{r.where and " at " + r.where} is the '
      f"same on all devices along {along}, but isn't known to be where it is "
      'used: it was passed to a function, as an argument, a carry or what is '
      'scanned over, as a value that varies. So what it decides varies, too, '
      'and a gradient that is taken inside of the shard_map may be summed over '
      f'devices where JAX does not. Expected a predicate that does not vary '
      f'along {along}: write jax.lax.pmax(predicate, {along}), or let the '
      'function capture the value.' +
      pages.see('varying_errors.md#predicates-that-agree'))


def _message(eqn, derived, axes, name, where, calls) -> str:
  where = where and f', at {where},'
  calls = calls and f'(called at {calls}) '
  axis = ' and '.join(map(repr, vt.ordered(axes)))
  collective = eqn.primitive.name.removesuffix('_invariant')
  message = (
      f'{collective} over mesh axis {axis} at '
      f'{source_info_util.summarize(eqn.source_info)} is inside a {name} '
      f'{calls}whose predicate{where} varies over {axis}. Devices along {axis} '
      'may not reach the collective together, which deadlocks or mixes their '
      'values.\nMake the predicate the same on all, for example with '
      f'jax.lax.pmax(predicate, {axis}), or move the collective out of the '
      f'{name}.')
  if derived:
    message += (
        ' This one comes from differentiating inside: the gradient of a value '
        f'that is the same along {axis} is summed over it. Cast that value '
        "outside with jax.lax.pcast(..., to='varying'), or jax.lax.pvary on "
        "older releases, and sum its gradient after.")
  return message + (
      '\nIf you know that the predicate agrees, set the option '
      'jax_allow_divergent_collectives to True.' +
      pages.see('varying_errors.md#divergent-collectives'))


_NAMES = {'while': 'lax.while_loop', 'cond': 'lax.cond or lax.switch'}


def _line_of_predicate(cond: core.Jaxpr) -> str:
  """The user's line that computes a loop's predicate, if there is one.

  A function of JAX's own, such as ``fori_loop``'s, was traced when another loop
  needed it first, maybe: what is known of its lines is no user's, or another's.
  """
  file = cond.debug_info.func_filename
  if file is not None and not source_info_util.is_user_filename(file):
    return ''
  out, = cond.outvars
  return next((source_info_util.summarize(e.source_info) for e in cond.eqns
               if out in e.outvars), '')
