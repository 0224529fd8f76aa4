# SPDX-License-Identifier: Apache-2.0
"""Predicates that are the same on all devices, though their types vary.

Where such a predicate chooses a branch, or another trip, no device parts, and
upstream, which takes every predicate to be the same, is right: what a branch or
loop changes doesn't vary because of it, and collectives inside meet.

So a predicate that varies is asked along which axes it may differ
(``agreement``, and for a loop's ``dependences``, as its predicate is a function
of its operands). If that is less than its type says, the primitive ``agreed``
gives it that type, which is what all that is made of the program later goes by:
a derivative, a batch, what is kept for a backward pass. It compiles to nothing.

That type is a claim. A jaxpr that is typed again keeps it along axes along
which the predicate agrees still (``agreed_rule``); and wherever a jaxpr is
bound, with whatever operands, the claim is judged again (``requirements``).

A predicate that depends on an argument of the function that is traced may agree
or not. It counts as one that differs. If it widens a type by itself, the
primitive ``doubted`` says so, for derivatives that are taken inside of the
``shard_map``.

Cost: asked where a predicate varies and types don't fit as they are, alone.
"""
from __future__ import annotations

from collections.abc import Sequence
import copy
from typing import Any

from jax._src import core
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.mend import jaxprs
from jax._src.varying import agreement
from jax._src.varying import bind as binding
from jax._src.varying import dependences
from jax._src.varying import flow
from jax._src.varying import requirements
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.rules.compared import compared_p
from jax._src.varying.types import Axes

agreed_p = core.Primitive('agreed')
agreed_p.def_impl(lambda predicate, *, along: predicate)


@agreed_p.def_abstract_eval
def _agreed_type(predicate, *, along):
  return vt.with_varying(predicate, vt.varying(predicate).difference(along))


def _agreed_batch(args, dims, *, along):
  return agreed_p.bind(*args, along=along), dims[0]


def _kept(site: flow.Site) -> Axes:
  """The axes along which a claim still holds after its jaxpr is typed again."""
  return site.eqn.params['along'] - site.operand_differs(
      0, own=site.facts_are_known())


def agreed_rule(site: flow.Site, ins: list[Axes]) -> None:
  axes, = site.operands = ins
  site.outs = [axes - _kept(site)]


def _build(b, site: flow.Site) -> None:
  retype.copy(b, site, along=_kept(site))


# Marks a predicate that decides a type, and of which it isn't known that
# devices differ by it (``requirements.DOUBTED``). Its type is its operand's.
doubted_p = core.Primitive('doubted')
doubted_p.def_impl(lambda predicate, *, along: predicate)
doubted_p.def_abstract_eval(lambda predicate, *, along: predicate)


def _doubted_batch(args, dims, *, along):
  return doubted_p.bind(*args, along=along), dims[0]


batching.primitive_batchers[doubted_p] = _doubted_batch
mlir.register_lowering(doubted_p, lambda ctx, predicate, along: [predicate])
batching.primitive_batchers[agreed_p] = _agreed_batch
mlir.register_lowering(agreed_p, lambda ctx, predicate, along: [predicate])
FLOW_RULES = {'agreed': agreed_rule}
BUILDERS = {'agreed': _build}
MARKS = {'doubted': doubted_p}


def refine(predicate: Any, aval: Any) -> Any:
  """A value of a type that says along what it may differ.

  Args:
    predicate: a value in the current trace, such as a conditional's index.
    aval: its type.

  Returns:
    ``predicate``, or one that is typed as varying over fewer axes. It has no
    derivative.
  """
  if not isinstance(predicate, core.Tracer):
    return predicate
  axes = vt.varying(aval)
  counted = vt.nontrivial(axes)
  if not counted:
    return predicate
  along = axes - agreement.differs(predicate)
  if not along & counted:
    return predicate
  trace = predicate._trace
  if not requirements.noted and agreement.is_for_later(predicate):
    requirements.note()
  if agreement.is_own(trace) and (compared := binding.comparing(along)):
    predicate = compared_p.bind(predicate, **compared)
  if trace is core.trace_ctx.trace and hasattr(trace, 'frame'):
    # As bind, in the fewest steps.
    return trace.process_primitive(agreed_p, (predicate,), dict(along=along))
  return agreed_p.bind(predicate, along=along)


def refine_loop(args: Sequence[Any], params: dict[str, Any]) -> dict[str, Any]:
  """The parameters of a loop whose predicate's type says what it may differ by.

  Args:
    args: the operands of a while loop.
    params: its parameters.

  Returns:
    ``params``, or those of a loop with such a predicate.
  """
  closed = params['cond_jaxpr']
  out, = vt.open_jaxpr(closed).outvars
  axes = vt.varying(out.aval)
  if not vt.nontrivial(axes):
    return params
  for trips in False, True:  # mostly the first tells
    differ = dependences.of_predicate(params, len(args), trips).axes(
        lambda n: agreement.differs(args[n]),
        lambda n: vt.varying(vt.typeof(args[n])), limit=axes)
    if axes <= differ:
      return params
  jaxpr = vt.open_jaxpr(closed)
  if any(map(agreement.is_for_later, args)):
    requirements.note()
  if agreement.is_own(core.trace_ctx.trace) and (
      compared := binding.comparing(axes - differ)):
    jaxpr = jaxprs.with_output(jaxpr, compared_p, compared)
  jaxpr = refine_output(jaxpr, axes - differ)
  return {**params, 'cond_jaxpr': vt.reclose(closed, jaxpr)}


def refine_output(jaxpr: core.Jaxpr, along: Axes) -> core.Jaxpr:
  """A predicate's jaxpr, typed as the same along these axes."""
  out, = jaxpr.outvars
  along &= vt.varying(out.aval)
  if not vt.nontrivial(along):
    return jaxpr
  return jaxprs.with_output(jaxpr, agreed_p, dict(along=along),
                            _agreed_type(out.aval, along=along))


def refine_index(b, site: flow.Site) -> flow.Site:
  """A conditional that is built again, by an index of such a type."""
  x, *others = site.eqn.invars
  x = b.read(x)
  along = site.agreeing & vt.varying(x.aval)
  if not vt.nontrivial(along):
    return site
  new = vt.new_var(_agreed_type(x.aval, along=along))
  requirements.note()
  b.emit([x], [new], agreed_p, dict(along=along))
  site = copy.copy(site)
  site.eqn = site.eqn.replace(invars=[new, *others])
  site.operands = [vt.varying(new.aval), *site.operands[1:]]
  return site
