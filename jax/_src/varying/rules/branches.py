# SPDX-License-Identifier: Apache-2.0
"""Branches in a shard_map whose outputs, or whose index, vary.

Output j of ``cond``, ``switch`` and ``platform_dependent`` varies over the
union of what it does in each branch and of what the index varies over. (An
output that is the same operand in every branch isn't an output of the
primitive, so it keeps its own type. A number that is the same in every branch
is one, and doesn't vary.) An axis along which there is one device doesn't
count as one that the index varies over.

Where the index varies, whatever a branch reads is cast before the branch. The
cast's transpose is a sum over devices, so inside the branch, devices that take
another one would never join it (jax#40823). What is left to cast inside has no
cotangent.

Nothing but a transpose needs that. So a conditional that is staged, and that
upstream has typed right but for it, stays as it was traced. It is typed when it
is bound again to be differentiated, or else when it is transposed
(``autodiff.staged_branches``).

Cost: what is right as it was traced takes a comparison of types, and a look at
each of its equations where the index varies.
"""
from __future__ import annotations

from jax._src import core
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import releases
from jax._src.varying import bind as binding
from jax._src.varying import carry_types
from jax._src.varying import flow
from jax._src.varying import outdated
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.contents import contents
from jax._src.varying.rules import agreeing_predicates
from jax._src.varying.rules import permute
from jax._src.varying.types import Axes


def cond_rule(site: flow.Site, ins: list[Axes]) -> None:
  choice, *ops = ins
  index = site.diverging(choice, site.eqn.invars[0],
                     lambda: site.operand_differs(0))
  branches = site.regions(*site.eqn.params['branches'])
  refs = any(b.refs for b in branches)
  widens = refs and flow.refs_widen()
  if index:
    branches = flow.diverges(site, index)
    reads = map(any, zip(*(contents(b.jaxpr).reads for b in branches)))
    ops = [a | index if r and (isinstance(v.aval, core.ShapedArray)
                               or widens and vt.is_ref(v.aval)) else a
           for a, r, v in zip(ops, reads, site.eqn.invars[1:])]
  if refs:
    ops = _widen_refs(site, branches, ops)
  outs = zip(*(b.run(ops) for b in branches))
  typed = (isinstance(vs[0].aval, core.ShapedArray)
           and not jaxprs.is_one_number(vs)
           for vs in zip(*(b.jaxpr.outvars for b in branches)))
  site.operands = [choice, *ops]
  site.outs = [flow.union(o) | index if t else flow.union(o)
               for o, t in zip(outs, typed)]


def _widen_refs(site: flow.Site, branches, ops: list[Axes]) -> list[Axes]:
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


FLOW_RULES = {'cond': cond_rule}


def _build(b, site: flow.Site) -> None:
  """Copies a conditional, with an index that varies where devices diverge."""
  if site.agreeing:
    site = agreeing_predicates.refine_index(b, site)
  retype.copy(b, site, **_Cond.typed_params(site))


BUILDERS = {'cond': _build}


def reading(cond_p: core.Primitive, branches, operands):
  """Branches that read what the first half of a conditional has kept.

  Partial evaluation splits a conditional in two, and traces both before the
  first is bound. What a branch makes of constants and keeps for the second
  doesn't vary in the branch; as an output of the first it varies as the index
  does, for other branches leave something else in its place.

  Args:
    cond_p: the primitive.
    branches: those of the second half, as they were traced.
    operands: of the second half, the index and what is kept among them.

  Returns:
    The branches, at the types of the operands.
  """
  avals = list(map(vt.typeof, operands))
  params = dict(branches=branches)
  if not vt.nontrivial(vt.varying(avals[0])) or _Cond.is_solved(params, avals):
    return branches
  site = binding.solve(cond_p, params, operands, avals, _Cond.binders(params))
  return type(branches)(_Cond.typed_params(site)['branches'])


def split_alike(eqn: core.JaxprEqn, first, second, kept):
  """``reading``, for a conditional in a jaxpr: both halves, and what is kept.

  Args:
    eqn: the conditional that is split.
    first: the branches of the first half, whose last outputs are kept.
    second: those of the second half, whose first inputs are what was kept.
    kept: its types.

  Returns:
    The three, where the index varies with types that vary as it does.
  """
  index = vt.nontrivial(vt.varying(eqn.invars[0].aval))
  if not index:
    return first, second, kept
  wide = [vt.with_varying(a, index | vt.varying(a)) for a in kept]
  axes = list(map(vt.varying, wide))
  if axes == list(map(vt.varying, kept)):
    return first, second, kept

  def at(branches, in_axes, out_axes):
    new = []
    for b in branches:
      region = flow.Region(vt.open_jaxpr(b))
      outs = region.run(in_axes(region.traced))
      new.append(vt.reclose(b, retype.rebuild(region, out_axes(outs))))
    return type(branches)(new)

  n = len(kept)
  return (at(first, lambda ins: ins, lambda outs: [*outs[:-n], *axes]),
          at(second, lambda ins: [*axes, *ins[n:]], lambda outs: outs), wide)


def with_expected_axes(out_avals1, out_avals2):
  """Branches' types, or trees of them, as ``carry_types`` has them."""
  if isinstance(out_avals1, (list, tuple)):
    return carry_types.with_expected_axes(out_avals1, out_avals2)
  return carry_types.tree_with_expected_axes(out_avals1, out_avals2)


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
  if len(set(map(id, inputs))) == len(inputs):  # mostly
    return forwarded
  if not vt.checking() or not vt.varying(vt.typeof(index)):
    return forwarded
  first: dict[int, int] = {}
  place = [first.setdefault(id(x), n) for n, x in enumerate(inputs)]
  return [[n if n is None else place[n] for n in outs] for outs in forwarded]


def choosing(index, branches):
  """The index of a batched conditional, by which outputs are to be chosen.

  What is chosen varies as the index does, also along an axis of one device,
  which doesn't count in the types that the outputs have (and are read with). A
  sum over one device is what it was.

  Args:
    index: what chooses, of the whole batch.
    branches: as they were before.

  Returns:
    ``index``, not varying along such axes if an output doesn't.
  """
  axes = vt.varying(vt.typeof(index))
  alone = axes - vt.nontrivial(axes)
  outs = [v.aval for b in branches for v in vt.open_jaxpr(b).outvars]
  if not alone or all(alone <= vt.varying(a) for a in outs):
    return index
  from jax._src.lax import parallel  # imports this module's users itself
  return parallel.psum(index, vt.ordered(alone))


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
  return [out if jaxprs.is_one_number(vs) else x
          for vs, out, x in zip(every, outs, chosen)]


class _Cond(binding.Binding):
  """The binding of conditionals: at the union of what their branches do."""

  @staticmethod
  def is_solved(params, avals, refs: bool = False, trace=None) -> bool | None:
    """True if the branches have equal types that fit the index."""
    branches = anatomy.branches(params)
    first, *others = branches
    types, given = [v.aval for v in first.invars], [*avals[1:]]
    outs = [v.aval for v in first.outvars]
    for b in branches:
      if not refs and (effects := b.effects) and vt.are_of_refs(effects):
        return False
    for b in others:
      types += [v.aval for v in b.outvars]
      given += outs
      if refs:
        types += [v.aval for v in b.invars]
        given += avals[1:]
    if not vt.vary_alike(types, given):
      return False
    index = vt.nontrivial(vt.varying(avals[0]))
    if not index:
      return True
    if refs:
      return False
    if not _outs_fit_index(branches, outs, index):
      return None
    may_wait = isinstance(trace, pe.DynamicJaxprTrace)
    for b in branches:
      inside = contents(b)
      if inside.waits(index):
        return None
      may_wait = may_wait and not inside.derives
    return may_wait or not narrow_reads(branches, avals[1:], index) or None

  @staticmethod
  def refine_predicate(args, params, avals):
    index = agreeing_predicates.refine(args[0], avals[0])
    if index is args[0]:
      return args, params, avals
    return [index, *args[1:]], params, [index.aval, *avals[1:]]

  @staticmethod
  def marked(mark, mark_params, args, params):
    index, *operands = args
    return [mark.bind(index, **mark_params), *operands], params

  @staticmethod
  def binders(params) -> list[core.Var | None]:
    return [None, *anatomy.branches(params)[0].invars]

  @staticmethod
  def typed_params(site: flow.Site) -> dict:
    branches = site.eqn.params['branches']
    if outdated.only_index_widened(site):
      for region in site.kids:
        outdated.accept(region)
    return permute.marked(site, dict(branches=tuple(
        vt.reclose(b, retype.rebuild(region, site.outs))
        for b, region in zip(branches, site.kids))))


def _outs_fit_index(branches, outs, index: Axes) -> bool:
  """True if what is returned varies as the index does."""
  for n, aval in enumerate(outs):
    if (isinstance(aval, core.ShapedArray)
        and not index <= vt.axes_of_array(aval)
        and not jaxprs.is_one_number([b.outvars[n] for b in branches])):
      return False
  return True


def narrow_reads(branches, avals, index: Axes) -> list[int]:
  """The operands read by a branch that lack a varying axis of the index.

  Args:
    branches: open jaxprs.
    avals: the types of their operands.
    index: the axes along which devices diverge at the choice.
  """
  return [n for n, aval in enumerate(avals)
          if isinstance(aval, core.ShapedArray)
          and not index <= vt.axes_of_array(aval)
          and any(contents(b).reads[n] for b in branches)]


def bind_at_least_types(cond_p: core.Primitive) -> None:
  """Has branches bound at the least types that hold for them, by whomever."""
  _Cond(cond_p).install()
  vjp_node = releases.vjp_node()
  if vjp_node is not None:  # what the second half is bound as
    node = vjp_node(cond_p)
    bind = node.bind_with_trace

    def bound(trace, args, avals, params):
      if vt.checking():
        with core.set_current_trace(trace):
          branches = reading(cond_p, params['branches'], args)
        params = {**params, 'branches': branches}
      return bind(trace, args, avals, params)

    node.def_bind_with_trace(bound)
