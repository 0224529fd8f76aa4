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
"""Refs in a shard_map: what their content varies over, and how they widen.

A ref's type is that of the value it is made from. Where something that varies
over more axes is written to it, or some devices write and others don't, its
content varies over those axes too, and so does what is read from it. So a ref
is an implicit carry of the loops and branches that it is used in:

  V(ref) contains V(initial value), V(what is written), V(where it is written)
  and, for each loop or branch that writes to it, V(predicate).

``flow`` solves this with the other carries; the rules are below. While
tracing, a ref has to have its new type from the write on:

* If the ref was made by an equation of the jaxpr being traced, it is replaced:
  its content is read, cast, and put in a new ref, which takes the place of the
  old one in the tracer that the user holds. What was read before keeps its
  type, which is that of the value that was there. Nothing is left of this in
  the compiled program, where refs are values.
* If it comes from outside, as an operand or a captured value of a loop, branch,
  jit or remat, the tracer's type is raised, the jaxpr is re-typed once it is
  complete, and the ref outside is widened when the equation is bound.
* If it enters ``shard_map`` itself, or another function whose types are fixed
  before it is traced, the write is refused.

What reads a ref at an index that varies, or in a branch whose index varies,
leaves the ref's type alone: it reads a copy that was cast. The cast stands
outside of the branch, where the sum over devices that it transposes to belongs.

Cost: one more look at each equation of jaxprs that use refs, and one pass over
the equations traced so far for each replacement. Programs without refs pay for
a test of the operands' types per loop, branch and jit with the check on.
"""
from __future__ import annotations

import functools

from jax._src import core
from jax._src.mend import traces
from jax._src import source_info_util
from jax._src.interpreters import partial_eval as pe
from jax._src.varying import bind as binding
from jax._src.varying import flow
from jax._src.varying import outdated
from jax._src.varying import retrace
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.contents import jaxprs_in
from jax._src.varying.rules import calls
from jax._src.varying.types import Axes


def write(site: flow.Site, ins: list[Axes]) -> None:
  """What is written, and where, reaches the ref."""
  everything = flow.union(ins)
  site.writes[0] = everything
  site.operands = [everything, everything, *ins[2:]]
  site.outs = [everything for _ in site.eqn.outvars]


def read(site: flow.Site, ins: list[Axes]) -> None:
  """What is read varies as the content and the index do."""
  everything = flow.union(ins)
  site.operands = [everything, *ins[1:]]
  site.outs = [everything | vt.varying(v.aval) for v in site.eqn.outvars]


def _make(b, site: flow.Site) -> None:
  """The initial value is cast to what the ref holds later."""
  out, = site.eqn.outvars
  site.operands = [b.region.read(out)]
  retype.copy(b, site)


FLOW_RULES = {'get': read, 'swap': write, 'addupdate': write}
BUILDERS = {'new_ref': _make}

# Functions that are traced for these are re-typed when they are bound.
_RETYPED_WHEN_BOUND = frozenset([
    'jit', 'pjit', 'scan', 'fori_loop', 'while_cond', 'while_body', 'cond',
    'switch', 'checkpoint', 'remat', 'checkpoint / remat'])


def widen(ref, axes: Axes):
  """Makes the content of a ref vary along ``axes`` too.

  What is replaced is the innermost jaxpr's own ref, which all who hold the ref
  share; the tracers of transformations around it only have their types set.

  Args:
    ref: the ref, as the program or a trace holds it. Its tracers change in
      place.
    axes: what its content must vary over.

  Returns:
    The ref, as the current trace has to be given it.

  Raises:
    TypeError: if the ref's type is fixed, or promotion is refused.
  """
  base, parts = _shared(ref)
  if base is None:
    raise TypeError(_refusal(ref.aval, axes, None))
  if axes - vt.varying(base.aval):
    purpose = getattr(base._trace.frame.debug_info, 'traced_for', None)
    local = base.parent is not None and base.parent.primitive is core.ref_p
    if not vt.promoting() or not local and purpose not in _RETYPED_WHEN_BOUND:
      raise TypeError(_refusal(ref.aval, axes, purpose))
    if local:
      with core.set_current_trace(base._trace):
        _replace(base, axes)
    else:
      retype.raised_refs[base._trace] = True
      base.aval = vt.with_varying(base.aval, vt.varying(base.aval) | axes)
  for part in parts:
    tangent = getattr(part, 'tangent', None)
    if isinstance(tangent, core.Tracer):
      trace = part._trace
      with core.set_current_trace(
          getattr(trace, 'tangent_trace', trace.parent_trace)):
        part.tangent = widen(tangent, axes)
    part.aval = vt.with_varying(part.aval, vt.varying(part.aval) | axes)
  return parts[0] if parts else base


def _shared(ref):
  """The innermost jaxpr's tracer of a ref, and the tracers that wrap it.

  Tracers of transformations inside the current trace's jaxpr can hold a ref
  that is another jaxpr's yet; they are given this one's.

  Args:
    ref: the ref.

  Returns:
    The tracer, None if nothing is being traced to a jaxpr, and a list of the
    others, from the outermost on.
  """
  x, parts, base_trace = ref, [], None
  for trace in traces.enclosing(core.trace_ctx.trace):
    if isinstance(trace, pe.DynamicJaxprTrace):
      base_trace = trace
      break
    if isinstance(x, core.Tracer) and _of(x, trace):
      parts.append(x)
      x = traces.held(x)
  if base_trace is None or not isinstance(x, core.Tracer):
    return None, parts
  base = base_trace.to_jaxpr_tracer(x, source_info_util.current())
  if parts and base is not x:
    setattr(parts[-1], 'primal' if hasattr(parts[-1], 'primal') else 'val',
            base)
  return base, parts


def _of(x, trace) -> bool:
  """Whether a tracer belongs to a trace, or to the same transformation."""
  return x._trace is trace or getattr(x._trace, 'tag', x) is getattr(
      trace, 'tag', None)


def _replace(ref, axes: Axes) -> None:
  """Puts a new ref, with the content cast, in a jaxpr's tracer of a ref."""
  # The equations so far are about the old ref.
  old = pe.DynamicJaxprTracer(ref._trace, ref.aval, ref.val, ref._line_info,
                              ref.parent)
  for eqn in ref._trace.frame.tracing_eqns:
    eqn = eqn if hasattr(eqn, 'in_tracers') else eqn()
    if eqn is not None and any(t is ref for t in eqn.in_tracers):
      eqn.in_tracers = [old if t is ref else t for t in eqn.in_tracers]
  new = _wide_copy(old, axes, ref.parent.params)
  ref.aval, ref.val, ref.parent = new.aval, new.val, new.parent


def _wide_copy(ref, axes: Axes, params=None):
  """A new ref that holds the content of another, cast to ``axes`` as well."""
  x = ref
  for prim, own in vt.copy_ref_steps(ref.aval):
    if prim is core.pvary_p:
      x = vt.cast(x, axes | vt.varying(ref.aval))
    else:
      x = prim.bind(x, **(params or own if prim is core.ref_p else own))
  return x


def _refusal(aval, axes: Axes, purpose) -> str:
  here = source_info_util.summarize(source_info_util.current())
  message = (f'{here}: a value that varies over {vt.ordered(axes)} is written '
             f'to a ref of type {aval.str_short()}, which varies over '
             f'{vt.ordered(vt.varying(aval))}')
  if purpose == 'shard_map':
    return (f'{message}, and was made outside of shard_map: its in_spec says '
            'that its content is the same on all devices along '
            f'{vt.ordered(axes - vt.varying(aval))}. Name those axes in the '
            "ref's in_spec, reduce the value over them (jax.lax.psum, "
            'jax.lax.pmax), or make the ref inside.')
  return (f'{message}.\nMake the ref from a value that varies over those axes: '
          f'new_ref(jax.lax.pcast(x, {vt.ordered(axes - vt.varying(aval))}, '
          "to='varying')).")


def in_current_trace(ref):
  """A ref, as the current trace holds it."""
  trace = core.trace_ctx.trace
  if not isinstance(trace, pe.DynamicJaxprTrace):
    return ref
  return trace.to_jaxpr_tracer(ref, source_info_util.current())


def widened_or_copied(ref, axes: Axes, written: bool):
  """A ref that must vary over more axes, widened or copied.

  Args:
    ref: the operand of an equation.
    axes: what it must vary over.
    written: whether the equation writes to it.

  Returns:
    What to bind in its place.
  """
  if written:
    return widen(ref, axes)
  trace = core.trace_ctx.trace
  if isinstance(ref, core.Tracer) and _of(ref, trace):
    return _wide_copy(ref, axes)
  base, parts = _shared(ref)
  if base is None or parts:
    return ref  # what transforms the current trace binds it again
  with core.set_current_trace(base._trace):
    return _wide_copy(base, axes)


def _promote(ref: core.Tracer, axes: Axes) -> None:
  """Widens a ref where it was made or captured, and in the current trace."""
  with core.set_current_trace(ref._trace):
    widen(ref, axes)
  widen(in_current_trace(ref), axes)


OPERANDS = {'ref': binding.Operands(in_current_trace, widened_or_copied)}
PROMOTERS = {'ref': _promote}


def _unify_refs(prim: core.Primitive, args, params, avals):
  """An equation's operands and parameters, with its refs at one type."""
  given = args
  args, avals = binding.refs_in_current_trace(args, avals)
  for jaxpr in jaxprs_in(params):
    binding.check_refs(jaxpr, given, avals)
  site = binding.solve(prim, params, args, avals)
  flow.check_divergence([site])
  if site.kids:
    params = {**params, **calls.call_params(site)}
  return binding.operands_at_solution(site, args, avals), params


def _unifying_access(prim: core.Primitive, bind, operands: int):
  """The same for a read or write, of so many operands besides the indices."""
  def bind_access(*args, **params):
    if len(args) == 1 or not vt.checking():  # the whole ref is read
      return bind(*args, **params)
    if getattr(args[0], '_trace', None) is not core.trace_ctx.trace:
      args = (in_current_trace(args[0]), *args[1:])
    avals = list(map(vt.typeof, args))
    ref, *others = map(vt.varying, avals)
    if others.count(ref) == len(others) or (
        others[:operands].count(ref) == operands
        and all(axes <= ref for axes in others[operands:])):
      return bind(*args, **params)
    args, params = _unify_refs(prim, args, params, avals)
    return bind(*args, **params)
  return bind_access


def traced_anew(infer_params):
  """Traces a jitted function once more where a ref varies that didn't before.

  Args:
    infer_params: gives the parameters, traced or kept from another call, and
      the operands with which a jitted function's equation is bound.

  Returns:
    What does the same; a gradient by the content of a ref isn't summed there
    over devices along which the content differs by now.
  """
  @functools.wraps(infer_params)
  def infer(*args):
    found, operands = infer_params(*args)
    jaxpr = vt.open_jaxpr(found.params['jaxpr'])
    axes = _overtaken(jaxpr, operands)
    if axes:
      with retrace.anew(axes):
        return infer_params(*args)
    return found, operands
  return infer


def remat_traced_anew(trace_to_jaxpr):
  """The same for ``jax.checkpoint``."""
  @functools.wraps(trace_to_jaxpr)
  def trace(fun, in_tree, in_avals, debug):
    traced = jaxpr, captured, _ = trace_to_jaxpr(fun, in_tree, in_avals, debug)
    axes = _overtaken(vt.open_jaxpr(jaxpr), captured, in_avals)
    if axes:
      with retrace.anew(axes):
        return trace_to_jaxpr(fun, in_tree, in_avals, debug)
    return traced
  return trace


def _overtaken(jaxpr: core.Jaxpr, operands, avals=()) -> Axes:
  """What refs among the operands, or these types of such, vary over by now."""
  if not vt.checking() or not vt.has_refs(jaxpr):
    return vt.NO_AXES
  types = [x if isinstance(x, core.AbstractValue) else vt.typeof(x)
           for x in operands]
  types = [vt.typeof(in_current_trace(x)) if vt.is_ref(a) and a is not x else a
           for a, x in zip(types, operands)]
  return outdated.overtaken(jaxpr, [*types, *avals])


class _Call(binding.Binding):
  """How a jitted or checkpointed function that uses refs is bound."""

  @staticmethod
  def is_solved(params, avals, refs: bool = False) -> bool:
    """Whether it goes without refs, which costs next to nothing to see."""
    return not params['jaxpr'].effects or not vt.any_ref(avals)

  def solve(self, args, params, avals):
    return _unify_refs(self.prim, args, params, avals)


def _unifying_closed_call(bind):
  """``_unify_refs`` for a call that has a way of its own to be bound."""
  prim = core.closed_call_p

  def bind_call(*args, **params):
    avals = list(map(vt.typeof, args)) if vt.checking() else ()
    if vt.any_ref(avals):
      args, params = _unify_refs(prim, args, params, avals)
    return bind(*args, **params)
  return bind_call


def bind_with_unified_refs() -> None:
  """Settles the types of refs whenever what uses them is bound."""
  from jax._src import ad_checkpoint, pjit
  from jax._src.state import primitives as state
  for prim, operands in ((state.get_p, 0), (state.swap_p, 1),
                         (state.addupdate_p, 1)):
    prim.bind = _unifying_access(prim, prim.bind, operands)
  for prim in (pjit.jit_p, ad_checkpoint.remat_p):
    _Call(prim).install()
  core.closed_call_p.bind = _unifying_closed_call(core.closed_call_p.bind)
