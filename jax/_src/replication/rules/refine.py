# SPDX-License-Identifier: Apache-2.0
"""Keeping what is the same on all devices through a function (see ``reps``).

The rewrite rules of shard_map work on sets of axes, and give plain ones. After
each primitive its flow rule tells which of the results are the same on all
devices; a rule that goes through functions inside has found it already.
"""
from __future__ import annotations

from jax._src import ad_checkpoint
from jax._src import core
from jax._src import custom_derivatives
from jax._src import pjit
from jax._src.lax import parallel
from jax._src.replication.rules import flow
from jax._src.replication.rules import reps
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm

_KNOWN = {pjit.pjit_p, ad_checkpoint.remat_p, core.closed_call_p,
          custom_derivatives.custom_vjp_call_jaxpr_p}

# primitives whose results can be the same where they vary by their types
makers = {parallel.all_gather_p, parallel.pbroadcast_p, sm.pbroadcast_p}


def outputs(mesh, prim, in_reps, out_reps, params):
  """Returns the types of a primitive's outputs with what is the same added."""
  if prim not in makers and reps.Rep not in map(type, in_reps):
    return out_reps
  if prim in _KNOWN:
    return out_reps
  if flow.is_standard(prim):  # most are: without the way over flows
    same = set.intersection(*map(reps.equal, in_reps))
    return [reps.Rep(r, same) for r in out_reps]
  flows = flow.infer(
      flow.Sized(mesh), prim, type_rules.from_reps(mesh, in_reps), params,
      len(out_reps))
  return [reps.Rep(r, reps.equal(type_rules.to_rep(mesh, f)))
          for r, f in zip(out_reps, flows)]
