# SPDX-License-Identifier: Apache-2.0
"""A mark on tangents that differ where their primals do not.

By the rules of forward mode a tangent depends on the values that its primal
depends on and on their tangents, so it is the same on all devices wherever the
primal is. One thing breaks this: a ``custom_jvp`` rule that is run after its
function was typed and makes the tangent differ. The rewrite of the rule
(``custom``) marks what it returns, with a primitive that computes nothing and
stays through further derivatives, and ``proven`` looks for it.

Backwards there is no mending it: where the primal met a value that varies, the
function was given a cast, which sums the cotangent over the devices before it
gets here. The mark's transpose refuses.
"""
from __future__ import annotations

from jax._src import core
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.mend import pages
from jax._src.replication.rules import reps
from jax.experimental import shard_map as sm

loose_p = core.Primitive('loose_tangent')
loose_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(loose_p, lambda ctx, x: [x])


def _refuse(ct, _):
  raise ValueError(
      'jax.grad of shard_map: in a function within jit or control flow, a rule '
      'of jax.custom_jvp makes the tangent of a replicated value differ '
      'between devices. Expected one that is replicated, as the cotangent is '
      'summed over the devices before it reaches the rule; got '
      f'{ct.aval.str_short()} for such a tangent. In the rule, make the '
      'tangent the same on all devices, for instance with jax.lax.psum or '
      'jax.lax.pmean, or call the function without jit and control flow.' +
      pages.see('replication.md#gradients'))


ad.deflinear2(loose_p, _refuse)
batching.defvectorized(loose_p)
sm.register_standard_check(loose_p)
sm.register_standard_rewrite(loose_p)


def mark(tangent, rep, primal_rep):
  """Returns `tangent`, marked if it differs where its primal does not."""
  if rep is None or reps.equal(primal_rep) <= reps.equal(rep):
    return tangent
  return loose_p.bind(tangent)


def marked(prim, params) -> bool:
  """True if the primitive is a mark, or runs a jaxpr with one in it."""
  return prim is loose_p or any(map(marked_in, core.jaxprs_in_params(params)))


def marked_in(jaxpr: core.Jaxpr) -> bool:
  return any(marked(e.primitive, e.params) for e in jaxpr.eqns)
