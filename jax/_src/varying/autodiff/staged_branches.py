# SPDX-License-Identifier: Apache-2.0
"""Transposes of conditionals that no derivative has bound.

A branch that reads a replicated operand casts it, by hand or as its operations
do. Where the index varies, the sum over devices that the cast transposes to has
to stand outside of the branch (jax#40823), and so has the cast. A conditional
is typed so whenever a derivative binds it; while it is only staged it is left
as it is (``rules.branches``). What is linear as it stands is transposed without
a derivative: by ``linear_transpose``, or as part of a ``custom_jvp`` rule.

Such a conditional is bound once more by a trace that types it, as a function of
its linear operands, and that function is transposed.

Cost: a look at the linear operands' types for each conditional that is
transposed and whose index varies; one more trace of such as these.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import api_util
from jax._src import core
from jax._src import linear_util as lu
from jax._src.interpreters import ad
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import releases
from jax._src.varying import types as vt
from jax._src.varying.rules import branches as rules


def sum_outside(cond_p: core.Primitive) -> None:
  """Has conditionals transposed with the sums over devices outside of branches.

  Args:
    cond_p: the primitive, whose transpose rules are defined.
  """
  adding = releases.accumulating_transposes()
  if cond_p in ad.primitive_transposes:  # until 0.8.2
    ad.primitive_transposes[cond_p] = _transpose(
        cond_p, ad.primitive_transposes[cond_p])
  if cond_p in adding:
    adding[cond_p] = _accumulate(cond_p, adding[cond_p])


def _transpose(cond_p, rule):
  def transpose(cts, index, /, *ops, **params):
    linear = list(map(ad.is_undefined_primal, ops))
    if not _sums_inside(index, linear, params['branches']):
      return rule(cts, index, *ops, **params)
    jaxpr, consts = _as_linear(cond_p, index, ops, linear, params)
    found = iter(ad.backward_pass(
        jaxpr, False, consts, [x for x, l in zip(ops, linear) if l], cts))
    return [None, *(next(found) if l else None for l in linear)]
  return transpose


def _accumulate(cond_p, rule):
  def transpose(cts, index, /, *ops, **params):
    linear = [isinstance(x, ad.GradAccum) for x in ops]
    if not _sums_inside(index, linear, params['branches']):
      return rule(cts, index, *ops, **params)
    jaxpr, consts = _as_linear(cond_p, index, ops, linear, params)
    return ad.backward_pass3(
        jaxpr, False, consts, [x for x, l in zip(ops, linear) if l], cts)
  return transpose


def _sums_inside(index, linear: Sequence[bool], branches) -> bool:
  """True if the sum of a linear operand's cotangent would be in a branch."""
  if not vt.checking():
    return False
  axes = vt.nontrivial(vt.varying(vt.typeof(index)))
  if not axes:
    return False
  opened = list(map(vt.open_jaxpr, branches))
  avals = [v.aval for v in opened[0].invars]
  return any(linear[n] for n in rules.narrow_reads(opened, avals, axes))


def _as_linear(cond_p, index, ops: Sequence[Any], linear: Sequence[bool],
               params: dict[str, Any]) -> tuple[core.Jaxpr, Sequence[Any]]:
  """A jaxpr of the linear operands, and what it captures."""
  binders = vt.open_jaxpr(params['branches'][0]).invars
  avals = [v.aval for v, l in zip(binders, linear) if l]

  def apply(*operands):
    given = iter(operands)
    return cond_p.bind(index, *(next(given) if l else x
                                for x, l in zip(ops, linear)), **params)

  info = api_util.debug_info('cond', apply, tuple(avals), {})
  jaxpr, _, consts = pe.trace_to_jaxpr_nounits(
      lu.wrap_init(apply, debug_info=info), list(map(
          pe.PartialVal.unknown, avals)), instantiate=True)
  return jaxpr, consts
