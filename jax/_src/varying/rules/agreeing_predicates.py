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

A jaxpr that is typed again must not keep a promise of its first caller. There
(``agreed_rule``) the type stays narrower but along axes along which the
predicate has come to differ, by what has become of the jaxpr's inputs.

Cost: asked where a predicate varies and types don't fit as they are, alone.
"""
from __future__ import annotations

from collections.abc import Sequence
import copy
from typing import Any

from jax._src import core
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src import source_info_util
from jax._src.varying import agreement
from jax._src.varying import dependences
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.types import Axes

agreed_p = core.Primitive('agreed')
agreed_p.def_impl(lambda predicate, *, along: predicate)


@agreed_p.def_abstract_eval
def _agreed_type(predicate, *, along):
  return vt.with_varying(predicate, vt.varying(predicate).difference(along))


def _agreed_batch(args, dims, *, along):
  return agreed_p.bind(*args, along=along), dims[0]


def agreed_rule(site: flow.Site, ins: list[Axes]) -> None:
  axes, = site.operands = ins
  kept = site.eqn.params['along'] - site.operand_differs(0, own=False)
  site.outs = [axes - kept]


def _build(b, site: flow.Site) -> None:
  kept = site.eqn.params['along'] - site.operand_differs(0, own=False)
  retype.copy(b, site, along=kept)


ad.defjvp_zero(agreed_p)
batching.primitive_batchers[agreed_p] = _agreed_batch
mlir.register_lowering(agreed_p, lambda ctx, predicate, along: [predicate])
FLOW_RULES = {'agreed': agreed_rule}
BUILDERS = {'agreed': _build}


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
  jaxpr = refine_output(vt.open_jaxpr(closed), axes - differ)
  return {**params, 'cond_jaxpr': vt.reclose(closed, jaxpr)}


def refine_output(jaxpr: core.Jaxpr, along: Axes) -> core.Jaxpr:
  """A predicate's jaxpr, typed as the same along these axes."""
  out, = jaxpr.outvars
  along &= vt.varying(out.aval)
  if not vt.nontrivial(along):
    return jaxpr
  new = vt.new_var(_agreed_type(out.aval, along=along))
  source = (jaxpr.eqns[-1].source_info if jaxpr.eqns else
            source_info_util.current())
  eqn = core.new_jaxpr_eqn([out], [new], agreed_p, dict(along=along),
                           core.no_effects, source)
  return jaxpr.replace(outvars=[new], eqns=[*jaxpr.eqns, eqn],
                       debug_info=jaxpr.debug_info)


def refine_index(b, site: flow.Site) -> flow.Site:
  """A conditional that is built again, by an index of such a type."""
  x, *others = site.eqn.invars
  x = b.read(x)
  along = site.agreeing & vt.varying(x.aval)
  if not vt.nontrivial(along):
    return site
  new = vt.new_var(_agreed_type(x.aval, along=along))
  b.emit([x], [new], agreed_p, dict(along=along))
  site = copy.copy(site)
  site.eqn = site.eqn.replace(invars=[new, *others])
  site.operands = [vt.varying(new.aval), *site.operands[1:]]
  return site
