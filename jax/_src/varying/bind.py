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
"""Binds a loop or branch at the least types that hold for it.

Whoever binds the primitive, a public function, a transformation or another
library's interpreter, its parameters hold jaxprs that were traced at some
types, and its operands have some. ``flow`` solves what it and its operands must
vary over; the operands are cast to that here, outside of the loop or branch,
and the jaxprs re-typed (``retype``), once. What no re-typing can mend is traced
again (``retrace``). A loop or branch that is right as it was traced costs a
comparison of its types and is bound as it is, with no frame more on the stack,
so that programs can be nested as deeply as ever.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jax._src import config
from jax._src import core
from jax._src.mend import releases
from jax._src import source_info_util
from jax._src.varying import flow
from jax._src.varying import outdated
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying import verify
from jax._src.varying.contents import from_derivative, jaxprs_in
from jax._src.varying.flow import Site
from jax._src.varying.types import Axes, NO_AXES


def settle_where_bound(
    prim: core.Primitive,
    settled: Callable[[dict[str, Any], Sequence[Any]], bool],
    settle: Callable[[Sequence[Any], dict[str, Any], Sequence[Any]],
                     tuple[list, dict]],
) -> None:
  """Has operands and parameters of ``prim`` settled before any trace has them.

  Args:
    prim: the primitive.
    settled: says, of the parameters and of the operands' types, whether they go
      together. Most do, and that should cost next to nothing.
    settle: gives the operands and parameters to use instead, from those and
      the operands' types. It runs in the trace that ``prim`` is bound in.
  """
  if not releases.binds_with_types():
    def bound_by_value(trace, args, params):
      if vt.checking() and not settled(params, list(map(vt.typeof, args))):
        with core.set_current_trace(trace):
          args, params = settle(args, params, list(map(vt.typeof, args)))
      return trace.process_primitive(prim, args, params)
    prim.def_bind_with_trace(bound_by_value)
    return

  check = releases.check_option()  # as vt.checking(), in the fewest steps

  def bound(trace, args, avals, params):
    if check.value and not settled(params, avals):
      with core.set_current_trace(trace):
        new, params = settle(args, params, avals)
      avals = [a if x is y else vt.typeof(y)
               for a, x, y in zip(avals, args, new)]
      args = new
    # A library's own trace may lack the attribute.
    if getattr(trace, 'requires_low', True) and prim.is_high(*avals, **params):
      return core.Primitive.bind_with_trace(prim, trace, args, avals, params)
    return trace.process_primitive(prim, args, params)

  prim.def_bind_with_trace(bound)


def bind_at_least_types(prim: core.Primitive, solved: Callable[..., bool],
                        binders: Callable[[dict], Sequence[core.Var | None]],
                        typed_params: Callable[[Site], dict],
                        carries: bool = False) -> None:
  """Has a loop or branch bound at the least types that hold for it.

  Args:
    prim: the primitive.
    solved: says, of the parameters and the operands' types, whether these are
      the types at which it was traced, and right for it. Without a third, true
      argument, refs are not: what the trace holds of them must be seen first.
    binders: gives, from the parameters, the variable that each operand is
      passed to, if it is passed to one. What varies over fewer axes than that
      is cast to the type that it was traced with.
    typed_params: gives the parameters that hold jaxprs, from the solved site.
    carries: whether its operands are carries, whose promotion can be refused
      with a TypeError where the configuration says so.
  """
  def settle(args, params, avals):
    if vt.any_ref(avals):
      given = args
      args, avals = all_here(args, avals)
      for jaxpr in jaxprs_in(params):
        check_refs(jaxpr, given, avals)
      if solved(params, avals, True):
        return args, params
    site = solve(prim, params, args, avals, binders(params))
    if carries and site.operands != site.ins:
      if not vt.promotes_where_checked():
        raise TypeError(_refusal(site))
      new = flow.union([
          to - now for now, to in zip(site.ins, site.operands)])
      sums = any(outdated.doubtful(kid, new) for kid in site.kids)
      lacking = [] if from_derivative(site.eqn) else site.lacking
      if sums or lacking:
        # With the sums that are missing, other carries needn't grow after all.
        wanted = site.operands if sums or lacking == site.ins else lacking
        raise retrace.CarryGrew(zip(args, wanted), new)
    site.selects = prim.name == 'cond' and vt.is_mapped(args[0])
    flow.check_divergence([site])
    args, params = agree(site, args, avals), {**params, **typed_params(site)}
    if config.enable_checks.value:
      verify.verify_bound(prim, list(map(vt.typeof, args)), params)
    return args, params

  settle_where_bound(prim, solved, settle)


def same_axes(variables: Sequence[core.Var], avals: Sequence[Any]) -> bool:
  """Whether variables vary over the same axes as the types beside them."""
  for v, aval in zip(variables, avals):
    if v.aval is not aval and vt.varying(v.aval) != vt.varying(aval):
      return False
  return True


class Operands(NamedTuple):
  """What is done with operands of a kind that isn't cast.

  Attributes:
    here: of an operand: it, as the current trace holds it.
    agree: of an operand, the axes that it must vary over, and whether the
      equation writes to it: what to bind in its place.
  """
  here: Callable[[Any], Any]
  agree: Callable[[Any, Axes, bool], Any]


# By the kind, 'ref'; the modules that the package lists fill it.
operands: dict[str, Operands] = {}


def here(ref):
  """A ref, as the current trace holds it, where its type can grow."""
  rule = operands.get('ref')
  return rule.here(ref) if rule else ref


def all_here(args, avals) -> tuple[list, list]:
  """Operands and types, with refs as the current trace holds them."""
  held = [here(x) if vt.is_ref(a) else x for x, a in zip(args, avals)]
  return held, [a if x is y else vt.typeof(y)
                for a, x, y in zip(avals, args, held)]


def check_refs(jaxpr: core.Jaxpr, given, avals) -> None:
  """Refuses a jaxpr that differentiates by a ref's content of another type.

  A jaxpr that is lowered was traced as a whole, and is right as it is.

  Args:
    jaxpr: what is about to be bound.
    given: the operands, as they were given.
    avals: their types in the current trace.

  Raises:
    RefGrew: if a ref varies that didn't when the jaxpr was traced.
  """
  trace = core.trace_ctx.trace
  if hasattr(trace, 'frame') and getattr(trace, 'requires_low', False):
    return
  axes = outdated.overtaken(jaxpr, avals)
  if axes:
    raise retrace.RefGrew(
        [(x, vt.varying(a)) for x, a in zip(given, avals)
         if vt.is_ref(a) and axes & vt.varying(a)], axes)


def agree(site: Site, args, avals) -> list:
  """The operands of a solved equation, as it needs them."""
  out = []
  for n, (x, aval, axes) in enumerate(zip(args, avals, site.operands)):
    if not axes or not axes - vt.varying(aval):
      out.append(x)
    elif 'ref' in operands and vt.is_ref(aval):
      out.append(operands['ref'].agree(x, axes, n in site.writes))
    else:
      out.append(vt.cast(x, axes))
  return out


def solve(prim: core.Primitive, params, args, avals,
          binders: Sequence[core.Var | None] = ()) -> Site:
  """The solution for an equation that is about to be bound."""
  eqn = core.new_jaxpr_eqn([vt.new_var(a) for a in avals], [], prim, params,
                           core.no_effects, source_info_util.current())
  site = Site(eqn)
  ins = [vt.varying(a) for a in avals]
  for n, v in enumerate(binders):
    if v is not None and isinstance(avals[n], core.ShapedArray):
      ins[n] |= vt.varying(v.aval)
  site.run(ins)
  while any(axes - ins[n] for n, axes in site.writes.items()):
    written = {id(args[n]): axes for n, axes in site.writes.items()}
    ins = [i | written.get(id(x), NO_AXES) for i, x in zip(ins, args)]
    site.run(ins)
  return site


def _refusal(site: Site) -> str:
  wanted = [f'  * operand {n}, of type {v.aval.str_short()}, along '
            f'{vt.ordered(to - now)}' for n, (v, now, to) in enumerate(zip(
                site.eqn.invars, site.ins, site.operands)) if to != now]
  return (f'lax.{site.eqn.primitive.name}: these operands must vary over more '
          'mesh axes than they do, because what the loop or branch makes of '
          f'them does (its predicate varies over {vt.ordered(site.predicate)}):'
          '\n' + '\n'.join(wanted) + '\nCast them with jax.lax.pcast(..., '
          "to='varying') (jax.lax.pvary on older releases), or set the option "
          'jax_shard_map_promote_carries to True to have that done.')
