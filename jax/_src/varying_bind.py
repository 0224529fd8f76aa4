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

The primitive is about to be bound, with jaxprs in its parameters that were
traced at its operands' types as they are. ``varying_flow`` solves what it and
its operands must vary over; the operands are cast to that here, outside of the
loop or branch, and the jaxprs re-typed (``varying_retype``), once. What no
re-typing can mend is traced again (``varying_retrace``). A loop or branch that
is right as it was traced costs a comparison of its types and is bound as it is.
"""
from __future__ import annotations

from collections.abc import Callable

from jax._src import core
from jax._src import source_info_util
from jax._src import varying_flow as flow
from jax._src import varying_retrace as retrace
from jax._src import varying_types as vt
from jax._src.varying_flow import Site
from jax._src.varying_types import Axes, NO_AXES


def bind(prim: core.Primitive, solved: Callable[..., bool],
         typed_params: Callable[[Site], dict], *args,
         carries: bool = False, **params):
  """Binds a loop or branch at the least types that hold for it.

  Args:
    prim: the primitive.
    solved: says, of the operands and parameters, whether the types at which it
      was traced are those. Most loops and branches are accepted as they are,
      and should cost next to nothing.
    typed_params: gives the parameters that hold jaxprs, from the solved site.
    *args: its operands, which are cast here, outside of the loop or branch.
    carries: whether its operands are carries, whose promotion can be refused.
    **params: its parameters as traced.

  Returns:
    What the primitive returns.

  Raises:
    TypeError: if a promotion is needed that the configuration refuses.
  """
  if not vt.checking() or solved(params, args):
    return getattr(prim, 'plain_bind', prim.bind)(*args, **params)
  args = all_here(args)
  site = solve(prim, params, args)
  if carries and site.operands != site.ins:
    if not vt.promoting():
      raise TypeError(_refusal(site))
    new = flow.union(to - now for now, to in zip(site.ins, site.operands))
    if _differentiates(site, new) or _opaque(site):
      raise retrace.CarryGrew(zip(args, site.operands), new)
  site.selects = prim.name == 'cond' and vt.is_mapped(args[0])
  flow.check_divergence([site])
  return prim.bind(*agree(site, args), **{**params, **typed_params(site)})


def same_axes(ins, outs) -> bool:
  """Whether pairs of variables vary over the same axes."""
  for v, out in zip(ins, outs):
    if v.aval is not out.aval and vt.varying(v.aval) != vt.varying(out.aval):
      return False
  return True


def refs_fit(jaxpr: core.Jaxpr, args) -> bool:
  """Whether refs are passed to the jaxpr at the types that it has for them.

  What is written to them in it fits those types, as it was traced with them.
  """
  if vt.has_refs(jaxpr):
    for v, x in zip(jaxpr.invars, args):
      if (vt.is_ref(v.aval)
          and vt.varying(v.aval) != vt.varying(vt.typeof(here(x)))):
        return False
  return True


def here(ref):
  """A ref, as the current trace holds it, where its type can grow."""
  return ref


def all_here(args) -> list:
  """Operands, with refs as the current trace holds them."""
  return [here(x) if vt.is_ref(vt.typeof(x)) else x for x in args]


def agree(site: Site, args) -> list:
  """The operands of a solved equation, cast as it needs."""
  return [vt.cast(x, axes) for x, axes in zip(args, site.operands)]


def solve(prim: core.Primitive, params, args) -> Site:
  """The solution for an equation that is about to be bound."""
  avals = [vt.typeof(x) for x in args]
  eqn = core.new_jaxpr_eqn([vt.new_var(a) for a in avals], [], prim, params,
                           core.no_effects, source_info_util.current())
  site = Site(eqn)
  ins = [vt.varying(a) for a in avals]
  site.run(ins)
  while any(axes - ins[n] for n, axes in site.writes.items()):
    written = {id(args[n]): axes for n, axes in site.writes.items()}
    ins = [i | written.get(id(x), NO_AXES) for i, x in zip(ins, args)]
    site.run(ins)
  return site


def _opaque(site: Site) -> bool:
  """Whether there is an equation inside that can't be re-typed."""
  return any(s.opaque or _opaque(s) for region in site.kids
             for s in region.sites.values())


def _differentiates(site: Site, axes: Axes) -> bool:
  """Whether a derivative inside is summed over one of the axes."""
  return any(
      eqn.primitive.name == 'psum_invariant'
      and not axes.isdisjoint(eqn.params['axes'])
      and derived
      for region in site.kids
      for eqn, derived in retrace.equations(region.jaxpr))


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
