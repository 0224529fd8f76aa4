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

import threading

from jax._src import core
from jax._src.varying import bind as binding
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.contents import contents, parting_is_harmless
from jax._src.varying.rules import permute
from jax._src.varying.types import Axes


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
    reads = map(any, zip(*(contents(b.jaxpr).reads for b in branches)))
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
  return permute.marked(site, dict(branches=tuple(
      vt.reclose(b, retype.rebuild(region, site.outs))
      for b, region in zip(branches, site.kids))))


FLOW_RULES = {'cond': cond_rule}
BUILDERS = {'cond': lambda b, site: retype.copy(b, site, **cond_params(site))}


class _Split(threading.local):
  """Whether what is bound are halves of conditionals that have been typed."""
  halves = False


_split = _Split()


def binding_residuals(cond_p: core.Primitive):
  """What binds a conditional whose outputs another one with its index takes.

  Partial evaluation splits a conditional in two. What the first hands to the
  second is read there by the branch that made it, so that devices part ways in
  both alike. It keeps the type that both were traced with.

  Args:
    cond_p: the primitive.

  Returns:
    A function of the arguments of ``cond_p.bind``.
  """
  def bind(*args, **params):
    before, _split.halves = _split.halves, True
    try:
      return cond_p.bind(*args, **params)
    finally:
      _split.halves = before
  return bind


def agree(out_avals1, out_avals2):
  """``types.agree``, for branches that a public function has traced.

  It can be called by a derivative rule while a conditional is split, and its
  own has not been typed yet.
  """
  _split.halves = False
  if isinstance(out_avals1, (list, tuple)):
    return vt.agree(out_avals1, out_avals2)
  return vt.agreeing_tree(out_avals1, out_avals2)


def by_value(index, forwarded, inputs):
  """Outputs that are one value in every branch, though each was given two.

  A value that is passed twice is two operands. Where branches return it by
  another one each, they still return the same, and it keeps its type.

  Args:
    index: what chooses a branch.
    forwarded: for each branch, which input each output is, or None.
    inputs: of all branches.

  Returns:
    ``forwarded``, if the index varies with the first of the inputs that are the
    same value.
  """
  if not vt.checking() or not vt.varying(vt.typeof(index)):
    return forwarded
  first: dict[int, int] = {}
  place = [first.setdefault(id(x), n) for n, x in enumerate(inputs)]
  return [[n if n is None else place[n] for n in outs] for outs in forwarded]


def keep_numbers(index, branches, chosen, outs):
  """Outputs of a batched conditional, once its index chose among branches.

  A number that is the same in every branch doesn't vary, and what reads it was
  typed so; chosen by an index that varies, it would.

  Args:
    index: what chooses, of the whole batch.
    branches: as they were before.
    chosen: the outputs, chosen.
    outs: those of the first branch.

  Returns:
    ``chosen``, with such numbers as the first branch gives them.
  """
  if not vt.varying(vt.typeof(index)):
    return chosen
  every = zip(*(vt.open_jaxpr(b).outvars for b in branches))
  return [out if _is_one_number(vs) else x
          for vs, out, x in zip(every, outs, chosen)]


def cond_solved(params, avals, refs: bool = False) -> bool:
  """Whether branches agree, and with the index where devices part ways."""
  branches = [vt.open_jaxpr(b) for b in params['branches']]
  first, index = branches[0], vt.varying(avals[0])
  if not binding.same_axes(first.invars, avals[1:]):
    return False
  outs = [v.aval for v in first.outvars]
  for b in branches:
    if not refs and vt.has_refs(b) or (
        b is not first and not binding.same_axes(b.outvars, outs)):
      return False
  return not index or not refs and _fits_index(
      branches, avals[1:], () if _split.halves else outs, index)


def _fits_index(branches, avals, outs, index: Axes) -> bool:
  """Whether what is read and returned varies as the index does."""
  for b in branches:
    if not parting_is_harmless(b, index):
      return False
    for read, aval in zip(contents(b).reads, avals):
      if (read and isinstance(aval, core.ShapedArray)
          and not index <= vt.axes_of_array(aval)):
        return False
  for n, aval in enumerate(outs):
    if (isinstance(aval, core.ShapedArray)
        and not index <= vt.axes_of_array(aval)
        and not _is_one_number([b.outvars[n] for b in branches])):
      return False
  return True


def cond_binders(params) -> list[core.Var | None]:
  return [None, *vt.open_jaxpr(params['branches'][0]).invars]


def bind_at_least_types(cond_p: core.Primitive) -> None:
  """Has branches bound at the least types that hold for them, by whomever."""
  binding.bind_at_least_types(cond_p, cond_solved, cond_binders, cond_params)
