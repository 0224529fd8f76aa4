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
"""Branches in a shard_map whose outputs, or whose index, vary.

Output j of ``cond``, ``switch`` and ``platform_dependent`` varies over the
union of what it does in each branch and of what the index varies over. (An
output that is the same operand in every branch isn't an output of the
primitive, so it keeps its own type. A number that is the same in every branch
is one, and doesn't vary.)

Where the index varies, whatever a branch reads is cast before the branch. The
cast's transpose is a sum over devices, so inside the branch, devices that take
another one would never join it (jax#40823). What is left to cast inside has no
cotangent.
"""
from __future__ import annotations

from jax._src import core
from jax._src import varying_bind as binding
from jax._src import varying_flow as flow
from jax._src import varying_retype as retype
from jax._src import varying_types as vt
from jax._src.varying_types import Axes


def _reads(jaxpr: core.Jaxpr) -> list[bool]:
  """Which inputs an equation uses or an output returns."""
  used = {v for eqn in jaxpr.eqns for v in eqn.invars if type(v) is core.Var}
  used.update(v for v in jaxpr.outvars if type(v) is core.Var)
  return [v in used for v in jaxpr.invars]


def _is_one_number(outs) -> bool:
  """Whether an output is the same literal in every branch."""
  return all(type(v) is core.Literal for v in outs) and (
      len({str(v.val) for v in outs}) == 1)


def cond_rule(site: flow.Site, ins: list[Axes]) -> None:
  index, *ops = ins
  branches = site.regions(*site.eqn.params['branches'])
  refs = any(b.refs for b in branches)
  if index:
    flow.diverges(site, index)
    reads = map(any, zip(*(_reads(b.jaxpr) for b in branches)))
    ops = [a | index if r and (isinstance(v.aval, core.ShapedArray)
                               or refs and vt.is_ref(v.aval)) else a
           for a, r, v in zip(ops, reads, site.eqn.invars[1:])]
  if refs:
    ops = _join_refs(site, branches, ops)
  outs = zip(*(b.run(ops) for b in branches))
  typed = (isinstance(vs[0].aval, core.ShapedArray) and not _is_one_number(vs)
           for vs in zip(*(b.jaxpr.outvars for b in branches)))
  site.operands = [index, *ops]
  site.outs = [flow.union(o) | index if t else flow.union(o)
               for o, t in zip(outs, typed)]


def _join_refs(site: flow.Site, branches, ops: list[Axes]) -> list[Axes]:
  """Raises refs among the operands to what any branch writes to them.

  A ref that is only read gets the index's axes too, as an array does, by a copy
  that is made outside: its cotangent must be summed there.
  """
  while True:
    for b in branches:
      b.run(ops)
    entries = zip(*([b.entry(n) for n in range(len(ops))] for b in branches))
    grown = [flow.union(e) if vt.is_ref(v.aval) else a
             for a, e, v in zip(ops, entries, site.eqn.invars[1:])]
    if grown == ops:
      break
    ops = grown
  for n in set().union(*(vt.written(b.jaxpr) for b in branches)):
    site.writes[n + 1] = ops[n]
  return ops


def cond_params(site: flow.Site) -> dict:
  branches = site.eqn.params['branches']
  return dict(branches=tuple(
      vt.reclose(b, retype.rebuild(region, site.outs))
      for b, region in zip(branches, site.kids)))


flow.rules['cond'] = cond_rule
retype.builders['cond'] = (
    lambda b, site: retype.copy(b, site, **cond_params(site)))


def bind_cond(prim: core.Primitive):
  """What binds a conditional at the least types that hold for it."""
  def bind(index, *args, branches, **params):
    def solved(*_):
      if vt.varying(vt.typeof(index)):
        return False
      first, *others = map(vt.open_jaxpr, branches)
      return (binding.refs_fit(first, args)
              and all(binding.refs_fit(b, args)
                      and binding.same_axes(first.outvars, b.outvars)
                      for b in others))
    return binding.bind(prim, solved, cond_params, index, *args,
                        branches=branches, **params)
  return bind
