# SPDX-License-Identifier: Apache-2.0
"""Transposes and tangents of 0.6.0 that are refused by their own types.

A transpose makes arrays, and traces functions, from shapes alone; in a
``shard_map`` with the check on these must vary along what the cotangent varies
along. And the casts and sums that carry several values at once meet cotangents
that are symbolically zero, which no primitive takes, and tangents of integers,
which hold nothing. A branch's operand that no branch reads has a cotangent of
zeros, which varies along what the index does, and the operand need not. Later
releases have none of these defects. Nothing is added
at run time but what was there: a cast is nothing, and the array that stands for
a type is never read.
"""
from __future__ import annotations

from typing import Any

from jax._src import core
from jax._src import dtypes
from jax._src.mend import jaxprs
from jax._src.mend import traces
from jax._src.ad_util import Zero
from jax._src.interpreters import ad
from jax._src.varying import types as vt


def like(x: Any, ct: Any):
  """The array ``x``, cast to vary along what the cotangent varies along."""
  return vt.cast(x, vt.varying(vt.typeof(ct)))


def primal_like(struct: Any, ct: Any):
  """A stand-in for the primal of a function that is to be transposed.

  Args:
    struct: its shape and dtype.
    ct: the cotangent that the transposed function will be applied to.

  Returns:
    ``struct``, or an array of its type that varies as the cotangent does.
  """
  axes = vt.varying(vt.typeof(ct))
  if not axes:
    return struct
  from jax._src.lax import lax  # imports this module's users itself
  return vt.cast(lax.full(struct.shape, 0, struct.dtype), axes)


def skip_zeros(*prims: core.Primitive) -> None:
  """Lets transposes of several values take symbolic zeros among cotangents.

  And constants among the operands, which have no cotangent: 0.8.0 keeps a zero
  that is cast with the rest as one.
  """
  for prim in prims:
    ad.primitive_transposes[prim] = _skipping_zeros(
        ad.primitive_transposes[prim])


def _skipping_zeros(rule):
  def transpose(cts, /, *args, **params):
    live = [i for i, (ct, a) in enumerate(zip(cts, args))
            if type(ct) is not Zero and ad.is_undefined_primal(a)]
    out = [Zero(a.aval) if ad.is_undefined_primal(a) else None for a in args]
    if live:
      found = rule([cts[i] for i in live], *(args[i] for i in live), **params)
      for i, ct in zip(live, found):
        out[i] = ct
    return out
  return transpose


def skip_unread(prim: core.Primitive) -> None:
  """Lets the transpose of a branch leave out what no branch reads.

  Args:
    prim: has an index and operands, and jaxprs as ``branches``.
  """
  ad.primitive_transposes[prim] = _skipping_unread(
      ad.primitive_transposes[prim])


def _skipping_unread(rule):
  def transpose(cts, index, /, *ops, **params):
    axes = vt.nontrivial(vt.varying(vt.typeof(index)))
    branches = params['branches']
    kept = [i for i, x in enumerate(ops)
            if not ad.is_undefined_primal(x) or axes <= vt.varying(x.aval)
            or any(_reads(b.jaxpr, i) for b in branches)]
    if len(kept) == len(ops):
      return rule(cts, index, *ops, **params)
    found = rule(cts, index, *(ops[i] for i in kept), **{
        **params, 'branches': tuple(_taking(b, kept) for b in branches)})
    out = [Zero(x.aval) if ad.is_undefined_primal(x) else None for x in ops]
    for i, ct in zip(kept, found[1:]):
      out[i] = ct
    return [None, *out]
  return transpose


def _reads(jaxpr: core.Jaxpr, i: int) -> bool:
  var = jaxpr.invars[i]
  return any(x is var for x in jaxpr.outvars) or any(
      x is var for eqn in jaxpr.eqns for x in eqn.invars)


def _taking(branch: core.ClosedJaxpr, kept: list[int]) -> core.ClosedJaxpr:
  jaxpr = branch.jaxpr
  return branch.replace(jaxpr=jaxprs.replace_inputs(
      jaxpr, [jaxpr.invars[i] for i in kept]))


def skip_integers(*prims: core.Primitive) -> None:
  """Lets derivatives of several values have integers among them.

  Args:
    *prims: primitives that are linear, each result in one operand.
  """
  for prim in prims:
    ad.primitive_jvps[prim] = _skipping_integers(prim, ad.primitive_jvps[prim])


def _skipping_integers(prim: core.Primitive, rule):
  def jvp(primals, tangents, /, **params):
    live = [i for i, t in enumerate(tangents)
            if type(t) is not Zero
            and getattr(t, 'dtype', None) != dtypes.float0]
    if len(live) == len(tangents):
      return rule(primals, tangents, **params)
    outs = prim.bind(*primals, **params)
    tangents_out = [Zero(traces.typeof(y).to_tangent_aval()) for y in outs]
    if live:
      found = prim.bind(*(tangents[i] for i in live), **params)
      for i, t in zip(live, found):
        tangents_out[i] = t
    return outs, tangents_out
  return jvp
