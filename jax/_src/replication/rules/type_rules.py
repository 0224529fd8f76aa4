# SPDX-License-Identifier: Apache-2.0
"""Types of shard_map out of flows, and its rules out of flow rules.

shard_map's types are sets of axes along which a value is replicated (None for a
constant). A primitive with a flow rule gets its check rule here, and, if its
operands need no cast, its rewrite rule.
"""
from __future__ import annotations

from typing import Any

from jax._src.replication.rules import flow
from jax._src.replication.rules import reps
from jax._src.replication.rules import unmapped
from jax.experimental import shard_map as sm


def from_reps(mesh, in_rep) -> list[flow.Flow]:
  axes = mesh.axis_names
  flows = []
  for i, r in enumerate(in_rep):
    if r is None or r.issuperset(axes):
      masks = (0,) * (2 * len(axes))
    else:
      masks = tuple([0 if a in r else flow.MADE for a in axes])
      masks += masks if type(r) is set else tuple(
          [0 if a in reps.equal(r) else flow.MADE for a in axes])
    flows.append(flow.Flow(masks, i))
  return flows


def to_rep(mesh, out: flow.Flow) -> set[Any]:
  axes = mesh.axis_names
  if not any(out.masks):
    return set(axes)
  rep, same = [{a for a, m in zip(axes, masks) if not m}
               for masks in flow.halves(axes, out)]
  return rep if rep == same else reps.Rep(rep, same)


def differing(mesh, rep) -> set[Any]:
  """The axes along which devices may diverge by a value of type `rep`."""
  if rep is None:
    return set()
  return {a for a in mesh.axis_names
          if a not in reps.equal(rep) and mesh.shape[a] > 1}


def check_rule(prim):
  """Returns the check rule of shard_map that a flow rule amounts to."""
  def rule(mesh, /, *in_rep, **params):
    axes = flow.Sized(mesh)
    outs = flow.flow_rules[prim](axes, from_reps(mesh, in_rep), **params)
    one = isinstance(outs, flow.Flow)
    unmapped.refuse_partly_mapped_within(
        prim, in_rep, params,
        lambda i: _reached(mesh, prim, params, len(in_rep), i))
    found = [{a for a, m in zip(axes, flow.halves(axes, f)[1]) if not m}
             for f in ([outs] if one else outs)]
    return found[0] if one else found
  return rule


def enter_unchanged(prim) -> None:
  """Enters rules for a primitive with a flow rule, whose operands stay as is.

  Its results vary as the flow rule says. The check's answer would be too
  narrow: an operand that was cast to vary, and is the same everywhere all the
  same, would give one that has to be cast once more where it meets another, in
  a branch as it may be.
  """
  def rewrite(mesh, in_rep, /, *args, **params):
    outs = prim.bind(*args, **params)
    outs = outs if prim.multiple_results else [outs]
    flows = flow.infer(flow.Sized(mesh), prim, from_reps(mesh, in_rep), params,
                       len(outs))
    return outs, [to_rep(mesh, f) for f in flows]

  sm._check_rules[prim] = check_rule(prim)
  sm._rewrite_rules[prim] = rewrite


def _reached(mesh, prim, params, num_ins: int, i: int) -> list[int]:
  """The outputs that operand `i` makes vary by itself."""
  axes = flow.Sized(mesh)
  whole = set(axes)
  def outs(reps):
    found = flow.flow_rules[prim](axes, from_reps(mesh, reps), **params)
    return [found] if isinstance(found, flow.Flow) else found
  plain = outs([whole] * num_ins)
  asked = outs([set() if j == i else whole for j in range(num_ins)])
  return [k for k, (a, b) in enumerate(zip(plain, asked))
          if a.masks != b.masks]


def promote(mesh, x, src, dst):
  """Casts `x`, replicated along `src`, to be replicated along `dst` only."""
  if src.issubset(dst):
    return x
  axes = tuple([n for n in mesh.axis_names if n in src and n not in dst])
  return sm.pbroadcast(x, axes) if axes else x
