# SPDX-License-Identifier: Apache-2.0
"""Replication rules of cond and switch (jax#27664, jax#40823).

An output varies along the axes along which it varies in some branch, and
along those along which the index may differ, by which the devices choose; an
output that is the same operand in every branch has that operand's type.

Where the index may differ, the operands that a branch reads are cast to vary
along those axes *before* the ``cond``. The transpose of the cast is a sum over
devices; inside a branch it would be reached by some devices only. An operand
that is merely handed through does not enter the ``cond`` at all, which leaves
it replicated.

Cost: each branch is traced once by the rewrite.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax._src import core
from jax._src import util
from jax._src.lax.control_flow import conditionals
from jax._src.replication.rules import divergence
from jax._src.replication.rules import flow
from jax._src.replication.rules import reps
from jax._src.replication.rules import retype
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm


def _first(ops) -> list[int]:
  """For each operand, where the same object is first among them."""
  seen: dict[int, int] = {}
  return [seen.setdefault(id(x), i) for i, x in enumerate(ops)]


def _common_sources(summaries, first) -> list[int | None]:
  """Per output, the operand that every branch hands through, or None."""
  per_output = zip(*[[None if f.source is None else first[f.source] for f in s]
                     for s in summaries])
  return [s[0] if len(set(s)) == 1 else None for s in per_output]


@flow.register(conditionals.cond_p)
def _cond(axes, ins, /, *, branches, **_):
  index, *ops = ins
  summaries = [flow.summarize(b.jaxpr, axes) for b in branches]
  per_branch = [flow.apply(s, ops) for s in summaries]
  decided = flow.deciding(axes, index)
  outs = [flow.union(axes, [decided, *outs]) for outs in zip(*per_branch)]
  return [out if s is None else ops[s]
          for out, s in zip(outs, _common_sources(summaries, _first(ops)))]


class _Split(NamedTuple):
  """A conditional without the outputs that are an operand in every branch.

  Attributes:
    branches: those that are left, without such outputs.
    sources: for each output of the conditional, that operand, or None.
    in_rep: the types at which the branches are given the operands.
  """
  branches: Sequence[core.ClosedJaxpr]
  sources: Sequence[int | None]
  in_rep: Sequence[Any]


def _split(mesh, branches, ops_rep, first, decided) -> _Split:
  """The part of a conditional to bind, whose index differs along `decided`."""
  if not decided:
    return _Split(branches, [None] * len(branches[0].out_avals), ops_rep)
  axes = flow.Sized(mesh)
  sources = _common_sources(
      [flow.summarize(b.jaxpr, axes) for b in branches], first)
  branches = [_drop_outputs(b, [s is not None for s in sources])
              for b in branches]
  read = set().union(*map(_inputs_read, branches))
  return _Split(branches, sources, [
      reps.less(r, decided) if i in read else r
      for i, r in enumerate(ops_rep)])


def _cond_rewrite(mesh, in_rep, index, /, *ops, branches, **params):
  index_rep, *ops_rep = in_rep
  index_flow, *flows = type_rules.from_reps(mesh, in_rep)
  first = _first(ops)  # one value that is given twice is one operand
  outs = _cond(flow.Sized(mesh), [index_flow, *(flows[i] for i in first)],
               branches=branches)
  out_rep = divergence.typed(mesh, outs)
  decided = type_rules.differing(mesh, index_rep)
  branches, sources, new_rep = _split(mesh, branches, ops_rep, first, decided)
  args = [type_rules.promote(mesh, *a) for a in zip(ops, ops_rep, new_rep)]
  kept_rep = [r for r, s in zip(out_rep, sources) if s is None]
  with divergence.diverging('lax.cond', decided):
    branches = tuple(
        retype.closed_jaxpr('lax.cond', mesh, b, new_rep, kept_rep)
        for b in branches)
  if decided and not kept_rep and not any(b.effects for b in branches):
    return [ops[s] for s in sources], out_rep
  kept = iter(conditionals.cond_p.bind(index, *args, branches=branches,
                                       **params))
  return [next(kept) if s is None else ops[s] for s in sources], out_rep


def _drop_outputs(closed, drop):
  jaxpr = closed.jaxpr
  outvars = [v for v, d in util.safe_zip(jaxpr.outvars, drop) if not d]
  debug_info = jaxpr.debug_info
  if len(outvars) < len(jaxpr.outvars):
    paths = debug_info.result_paths
    if paths is not None and len(paths) == len(drop):
      debug_info = debug_info._replace(
          result_paths=tuple(p for p, d in zip(paths, drop) if not d))
  return closed.replace(
      jaxpr=jaxpr.replace(outvars=outvars, debug_info=debug_info))


def _inputs_read(closed) -> set[int]:
  jaxpr = closed.jaxpr
  atoms = [x for e in jaxpr.eqns for x in e.invars] + list(jaxpr.outvars)
  used = {x for x in atoms if isinstance(x, core.Var)}
  return {i for i, v in enumerate(jaxpr.invars) if v in used}


sm._check_rules[conditionals.cond_p] = type_rules.check_rule(
    conditionals.cond_p)
sm._rewrite_rules[conditionals.cond_p] = _cond_rewrite
