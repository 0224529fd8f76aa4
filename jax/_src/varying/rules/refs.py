# SPDX-License-Identifier: Apache-2.0
"""Refs in a shard_map: what their content varies over, and how they widen.

A ref's type is that of the value it is made from. Where something that varies
over more axes is written to it, or some devices write and others don't, its
content varies over those axes too, and so does what is read from it. So a ref
is an implicit carry of the loops and branches that it is used in:

  V(ref) contains V(initial value), V(what is written), V(where it is written)
  and, for each loop or branch that writes to it, V(predicate).

``flow`` solves this with the other carries; the rules are below. While
tracing, a ref has to have its new type from the write on (``ref_tracers``).

What reads a ref at an index that varies, or in a branch whose index varies,
leaves the ref's type alone: it reads a copy that was cast. The cast stands
outside of the branch, where the sum over devices that it transposes to belongs.

Cost: one more look at each equation of jaxprs that use refs. Programs without
refs pay for a test of the operands' types per loop, branch and jit with the
check on.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from jax._src import core
from jax._src import linear_util as lu
from jax._src.mend import jaxprs
from jax._src.varying import bind as binding
from jax._src.varying import flow
from jax._src.varying import outdated
from jax._src.varying import retrace
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.contents import jaxprs_in
from jax._src.varying.rules import calls
from jax._src.varying.rules import ref_tracers
from jax._src.varying.types import Axes


def write(site: flow.Site, ins: list[Axes]) -> None:
  """A write: what is written, and where, reaches the ref."""
  everything = flow.union(ins)
  site.writes[0] = everything
  site.operands = [everything, everything, *ins[2:]]
  site.outs = [everything for _ in site.eqn.outvars]


def read(site: flow.Site, ins: list[Axes]) -> None:
  """A read: its result varies as the content and the index do."""
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

OPERANDS = {'ref': binding.Operands(ref_tracers.in_current_trace,
                                    ref_tracers.widened_or_copied)}
PROMOTERS = {'ref': ref_tracers.promote}


def _unify_refs(prim: core.Primitive, args, params, avals):
  """An equation's operands and parameters, with its refs at one type."""
  given = args
  args, avals = binding.refs_in_current_trace(args, avals)
  for jaxpr in jaxprs_in(params):
    binding.check_refs(jaxpr, given, avals)
  site = binding.solve(prim, params, args, avals)
  if site.kids:
    params = {**params, **calls.call_params(site)}
  return binding.operands_at_solution(site, args, avals), params


def _unifying_access(prim: core.Primitive, bind, operands: int):
  """Binds a read or write, of so many operands besides the indices."""
  def bind_access(*args, **params):
    if len(args) == 1 or not vt.checking():  # the whole ref is read
      return bind(*args, **params)
    if getattr(args[0], '_trace', None) is not core.trace_ctx.trace:
      args = (ref_tracers.in_current_trace(args[0]), *args[1:])
    avals = list(map(vt.typeof, args))
    ref, *others = map(vt.varying, avals)
    if others.count(ref) == len(others) or (
        others[:operands].count(ref) == operands
        and all(axes <= ref for axes in others[operands:])):
      return bind(*args, **params)
    args, params = _unify_refs(prim, args, params, avals)
    return bind(*args, **params)
  return bind_access


def traced_anew(traced, infer_params, *args):
  """Traces a jitted function once more if one of its refs has come to vary.

  It is given what was traced, so that it isn't on the stack meanwhile.

  Args:
    traced: the parameters and operands with which a jitted function's equation
      is bound; its jaxpr is new, or kept from another call.
    infer_params: traces the function, or finds it traced; returns these.
    *args: of ``infer_params``.

  Returns:
    ``traced``, or that of the new jaxpr; a gradient by the content of a ref
    isn't summed there over devices along which the content differs by now.
  """
  jaxpr = traced[0].params['jaxpr']
  if jaxprs.effects_of_closed(jaxpr):
    axes = _outdated_axes(vt.open_jaxpr(jaxpr), traced[1])
    if axes:
      with retrace.anew(axes):
        return infer_params(*args)
  return traced


def remat_traced_anew(trace_to_jaxpr):
  """Traces a checkpointed function anew, as ``traced_anew`` a jitted one.

  Args:
    trace_to_jaxpr: traces it; what is returned does the same.
  """
  @functools.wraps(trace_to_jaxpr)
  def trace(fun, in_tree, in_avals, debug):
    traced = jaxpr, captured, _ = trace_to_jaxpr(fun, in_tree, in_avals, debug)
    axes = _outdated_axes(vt.open_jaxpr(jaxpr), captured, in_avals)
    if axes:
      with retrace.anew(axes):
        return trace_to_jaxpr(fun, in_tree, in_avals, debug)
    return traced
  return trace


def _outdated_axes(jaxpr: core.Jaxpr, operands, avals=()) -> Axes:
  """The axes that refs vary over by now and their jaxpr doesn't know of."""
  if not vt.checking() or not vt.has_refs(jaxpr):
    return vt.NO_AXES
  types = [x if isinstance(x, core.AbstractValue) else vt.typeof(x)
           for x in operands]
  types = [vt.typeof(ref_tracers.in_current_trace(x))
           if vt.is_ref(a) and a is not x else a
           for a, x in zip(types, operands)]
  return outdated.by_refs(jaxpr, [*types, *avals])


class _RefCall(binding.Binding):
  """The binding of a jitted or checkpointed function that uses refs."""

  def __init__(self, prim: core.Primitive, effects_of: Callable[[Any], Any]):
    super().__init__(prim)

    def is_solved(params, avals, refs: bool = False, trace=None) -> bool:
      """True if it goes without refs, which costs next to nothing to see."""
      return not effects_of(params['jaxpr']) or not vt.any_ref(avals)
    own: Any = self  # an instance's own: this costs a call less
    own.is_solved = is_solved

  def solve(self, args, params, avals, but_for_index=False):
    del but_for_index
    new, params = _unify_refs(self.prim, args, params, avals)
    return new, params, binding.types_of(new, args, avals)


def _unifying_closed_call(bind):
  """``_unify_refs`` for a call that has a way of its own to be bound."""
  prim = core.closed_call_p

  def bind_call(*args, **params):
    functions = [x for x in args[:1] if isinstance(x, lu.WrappedFun)]  # 0.9.1's
    args = args[len(functions):]
    avals = list(map(vt.typeof, args)) if vt.checking() else ()
    if vt.any_ref(avals):
      args, params = _unify_refs(prim, args, params, avals)
    return bind(*functions, *args, **params)
  return bind_call


def bind_with_unified_refs() -> None:
  """Settles the types of refs whenever what uses them is bound."""
  from jax._src import ad_checkpoint, pjit
  from jax._src.state import primitives as state
  prim: Any
  for prim, operands in ((state.get_p, 0), (state.swap_p, 1),
                         (state.addupdate_p, 1)):
    prim.bind = _unifying_access(prim, prim.bind, operands)
  _RefCall(pjit.jit_p, jaxprs.effects_of_closed).install()
  _RefCall(ad_checkpoint.remat_p, jaxprs.effects_of_open).install()
  prim = core.closed_call_p
  prim.bind = _unifying_closed_call(prim.bind)
