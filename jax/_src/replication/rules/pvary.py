# SPDX-License-Identifier: Apache-2.0
"""Replication rules of ``jax.lax.pvary``, a ``pbroadcast`` in the rewrite.

The value stays the same on all devices, but it was said to vary, and as in JAX
0.6 ``out_specs`` may then not ask for a replicated one.
"""
from __future__ import annotations

from jax._src.replication import pvary
from jax._src.replication.rules import flow
from jax._src.replication.rules import reps
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm


@flow.register(pvary.pvary_p)
def _pvary(axes_, ins, *, axes):
  return flow.union(axes_, [*ins, flow.made_flow(axes_, axes)])


def _rewrite(mesh, in_rep, x, *, axes):
  rep, = in_rep
  dst = reps.Rep(rep - set(axes), reps.equal(rep) - set(axes))
  outer = tuple(a for a in axes if a not in mesh.axis_names)
  if outer:
    x = pvary.pvary_p.bind(x, axes=outer)
  return [type_rules.promote(mesh, x, rep, dst)], [dst]


sm._rewrite_rules[pvary.pvary_p] = _rewrite
sm._check_rules[pvary.pvary_p] = type_rules.check_rule(pvary.pvary_p)
