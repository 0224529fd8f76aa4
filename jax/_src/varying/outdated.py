# SPDX-License-Identifier: Apache-2.0
"""Traced jaxprs that are outdated: typing them again can't make them right.

Differentiating by a value that is the same on all devices sums the gradient
over them; by a value that varies it doesn't. The sum is in the jaxpr once a
function has been traced. Where that jaxpr is typed again, with inputs that vary
over more axes, a sum can be left that the function doesn't mean (``2 * t *
psum(a)`` for ``2 * t * a``), or one can be missing. So ``retype.rebuild``, by
which all is typed again, looks through it here:

* Wrong for certain: a cast from replicated to varying has nothing left to do,
  as its operand varies now, and the jaxpr has a sum over that axis that came of
  a derivative, as the transpose of such a cast; or the cast itself is one of a
  cotangent. Untyped again, that cast would be refused (``pvary`` of what
  varies), so nothing that JAX accepts is.
* Perhaps wrong: a derivative is summed over an axis of an input that is new to
  it, be the cast there or not (what nobody uses isn't kept); a derivative comes
  to vary where something that doesn't meets what does; or an equation holds
  jaxprs or types that no rule knows. Who can trace the function again, with the
  inputs promoted first, does; it gives what a cast by hand gives.

A sum over an axis of one device is none.

What a conditional's branches read is cast before it where devices take
different ones. That alone makes nothing wrong in them: they compute what they
did, and a sum or cast of a cotangent over axes along which devices diverge is
refused there anyway.

A derivative of something linear can have no equation at all. So a function that
is at hand and differentiates (``notes``) is traced again without a look here;
``missing_sums`` is for those that aren't at hand.

Cost: one more look at each equation that is typed again; an answer is kept as
long as the solution it is about.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jax._src import core
from jax._src import dtypes
from jax._src.varying import flow
from jax._src.varying import notes
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying.contents import contents
from jax._src.varying.contents import from_derivative, is_differentiated
from jax._src.varying.types import Axes, NO_AXES


class Evidence(NamedTuple):
  """Evidence that a solved region, or one inside it, is outdated.

  Attributes:
    idle: the axes of casts that have nothing left to do.
    idle_back: the same of casts of cotangents.
    cast: the axes that values must be cast to where no derivative is computed.
    differentiated: those of them where a derivative is taken of it.
    derived: the axes that equations of a derivative come to vary over.
    opaque: whether an equation can't be typed again.
  """
  idle: Axes = NO_AXES
  idle_back: Axes = NO_AXES
  cast: Axes = NO_AXES
  differentiated: Axes = NO_AXES
  derived: Axes = NO_AXES
  opaque: bool = False


def evidence(region: flow.Region) -> Evidence:
  """The evidence in a solved region."""
  known = region.evidence
  if known is None or known[0] is not region.ins:
    known = region.evidence = region.ins, _look_through(region)
  return known[1]


def _look_through(region: flow.Region) -> Evidence:
  idle = idle_back = cast = differentiated = derived = NO_AXES
  opaque = False
  for site in region.sites.values():
    eqn, mine, opaque = site.eqn, NO_AXES, opaque or site.opaque
    back, cast_here = from_derivative(eqn), NO_AXES
    if eqn.primitive is core.pvary_p:
      mine = site.ins[0].intersection(eqn.params['axes'])
      if mine:
        mine -= vt.varying(eqn.invars[0].aval)
    elif not back and site.operands != site.ins:
      for v, a, i in zip(eqn.invars, site.operands, site.ins):
        if a != i and type(v) is not core.Literal and differentiable(v.aval):
          cast_here |= a - i
    by_index = only_index_widened(site)
    for kid in site.kids:
      f = evidence(kid)
      if by_index:
        f = f._replace(idle=NO_AXES, idle_back=NO_AXES)
      mine, opaque = mine | f.idle, opaque or f.opaque
      idle_back, derived = idle_back | f.idle_back, derived | f.derived
      if not back:
        cast_here |= f.cast
        differentiated |= f.differentiated
    cast |= cast_here
    if cast_here and is_differentiated(eqn):
      differentiated |= cast_here
    if back:
      idle_back |= mine
      for v, a in zip(eqn.outvars, site.outs):
        derived |= a - vt.varying(v.aval)
    else:
      idle |= mine
  return Evidence(idle, idle_back, cast, differentiated, derived, opaque)


def only_index_widened(site: flow.Site) -> bool:
  """True of a conditional of which only the index varies over more axes.

  Its operands do as they did when the branches were traced, refs aside: what is
  written to a ref can differ on devices from then on.
  """
  if not site.predicate or vt.name_of(site.eqn.primitive) != 'cond':
    return False
  return all(not vt.is_ref(v.aval) and vt.varying(v.aval) == axes
             for v, axes in zip(site.eqn.invars[1:], site.ins[1:]))


def differentiable(aval) -> bool:
  """True if a value of this type has derivatives."""
  return (isinstance(aval, core.ShapedArray) and
          dtypes.issubdtype(aval.dtype, np.inexact))


def refuse_wrong(region: flow.Region) -> None:
  """Refuses a solved region that is wrong for certain, if typed again.

  Raises:
    TracedTooEarly: if it is.
  """
  f = evidence(region)
  axes = vt.nontrivial(
      f.idle & contents(region.jaxpr).derived_sums | f.idle_back)
  if axes:
    raise retrace.TracedTooEarly(axes)


def accept(region: flow.Region) -> None:
  """Takes a region to be right as it is, with all that is inside it."""
  region.evidence = region.ins, Evidence()
  for site in region.sites.values():
    for kid in site.kids:
      accept(kid)


def may_be_wrong(region: flow.Region, new: Axes) -> bool:
  """True if a solved region may have sums too many, or isn't known.

  Args:
    region: the region.
    new: what its inputs vary over that they didn't.
  """
  f = evidence(region)
  sums = contents(region.jaxpr).derived_sums
  return bool(f.opaque or
              vt.nontrivial((new | f.idle) & sums | f.idle_back))


def missing_sums(region: flow.Region) -> Axes:
  """The axes of sums that a solved region may lack.

  It isn't asked of what comes of a derivative itself: what is derived in there
  isn't derived once more. Where a backward pass ran, the derivative may be of
  something linear, and no equation of it come to vary.
  """
  note = notes.note_of(region.jaxpr)
  if note is not None and note.differentiates:
    return vt.nontrivial(evidence(region).differentiated)
  if not contents(region.jaxpr).derives:
    return NO_AXES
  f = evidence(region)
  return vt.nontrivial(f.differentiated & f.derived)


def by_refs(jaxpr: core.Jaxpr, avals: Sequence) -> Axes:
  """The axes that refs vary over by now, and didn't when a jaxpr was traced.

  Args:
    jaxpr: what is about to be bound.
    avals: the types of its operands, or of some of them.

  Returns:
    The axes of sums that are right no longer, or that may be missing.
  """
  note = notes.note_of(jaxpr)
  refs = [vt.varying(a) for a in avals if vt.is_ref(a)]
  axes = NO_AXES
  if note is not None:
    axes = (flow.union(g & vt.varying(a) for g, a in zip(note.grown, avals))
            if len(note.grown) == len(avals) else
            flow.union(note.grown) & flow.union(refs))
  if len(jaxpr.invars) == len(avals):
    new = flow.union(vt.varying(a) - vt.varying(v.aval) for a, v in zip(
        avals, jaxpr.invars) if vt.is_ref(a))
    if new and contents(jaxpr).differentiates:
      axes |= vt.nontrivial(new)
  return axes
