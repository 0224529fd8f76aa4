# SPDX-License-Identifier: Apache-2.0
"""Values that vary and are the same on all devices, as outputs.

The result of ``all_gather``, and what is computed from it and from replicated
values, is the same everywhere, although its type says that it varies (see
``reps``). Where ``out_specs`` ask for a replicated output, such a value is cast
to one. The cast computes nothing, and its transpose gives each device its
share of the cotangent, the total divided by their number.
"""
from __future__ import annotations

import math

from jax._src import core
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.lax import lax
from jax._src.replication.rules import flow
from jax._src.replication.rules import reps
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm

def cast_to_replicated(mesh, outs, out_reps, wanted):
  """Casts outputs that are to be replicated, and are the same, to be so.

  Args:
    mesh: the mesh of the shard_map.
    outs: the values.
    out_reps: their types.
    wanted: the types that they should have at least.

  Returns:
    The values and their types.
  """
  if all(map(set.issuperset, out_reps, wanted)):
    return outs, out_reps
  new_outs, new_reps = [], []
  for x, rep, dst in zip(outs, out_reps, wanted):
    axes = tuple(a for a in mesh.axis_names if a in dst and a not in rep)
    if axes and reps.equal(rep).issuperset(axes):
      x = same_p.bind(x, axes=axes, size=math.prod(mesh.shape[a] for a in axes))
      rep = reps.Rep(rep.union(axes), reps.equal(rep))
    new_outs.append(x)
    new_reps.append(rep)
  return new_outs, new_reps


same_p = core.Primitive('same')  # varying -> replicated, where it is the same
same_p.def_abstract_eval(lambda x, /, **_: x)
mlir.register_lowering(same_p, lambda ctx, x, /, **_: [x])
batching.primitive_batchers[same_p] = lambda args, dims, /, **params: (
    same_p.bind(*args, **params), *dims)


def _transpose(ct, x, *, axes, size):
  del x
  return [lax.mul(sm.pbroadcast(ct, axes), lax._const(ct, 1 / size))]


ad.deflinear2(same_p, _transpose)


@flow.register(same_p)
def _same(axes_, ins, /, *, axes, **_):
  varies, differs = flow.halves(axes_, ins[0])
  varies = [0 if a in axes else m for a, m in zip(axes_, varies)]
  return flow.Flow((*varies, *differs))


type_rules.enter_unchanged(same_p)
