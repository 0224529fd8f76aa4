# SPDX-License-Identifier: Apache-2.0
"""Replication rules of while_loop and scan (jax#27664).

The types of a loop's carry are the least ones with: a carry varies along

* the axes along which its initial value varies;
* the axes along which the body's output for it varies, given those types;
* in a ``while_loop``, the axes along which the predicate may differ: the
  devices then leave the loop at different times. A carry that the body
  returns untouched is the same after any number of iterations, and is left
  out.

They are found on the body's summary (see ``flow``). The loop is then rewritten
once: initial values are cast to the carry's type, and what the body and the
predicate read is cast to vary along the predicate's axes, all of it outside
the loop, where every device passes.

Limits: a ``while_loop`` has no reverse-mode derivative, here as in JAX.
Cost: each body is traced once by the rewrite, so that a nest of loops costs
its number of equations times its depth.
"""
from __future__ import annotations

from typing import NamedTuple

from jax._src import util
from jax._src.lax.control_flow import loops
from jax._src.replication.rules import divergence
from jax._src.replication.rules import flow
from jax._src.replication.rules import reps
from jax._src.replication.rules import retype
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm


class LoopFlows(NamedTuple):
  """The flows in a loop: its carry, predicate (or None) and body outputs."""
  carry: list[flow.Flow]
  predicate: flow.Flow | None
  outs: list[flow.Flow]


def loop_flows(axes, consts, init, xs, body, cond=None) -> LoopFlows:
  """Returns the least flows of a loop that its body agrees with.

  Args:
    axes: the names of the mesh axes.
    consts: flows of the body's constants.
    init: flows of the initial values.
    xs: flows of what is scanned over.
    body: summary of the body, of `consts`, the carry and `xs`.
    cond: function from the flows of the carry to the predicate's, or None.
  """
  kept = [out.source == len(consts) + i
          for i, out in enumerate(body[:len(init)])]
  carry, predicate = list(init), None
  while True:
    outs = flow.apply(body, [*consts, *carry, *xs])
    predicate = cond(carry) if cond else None
    decided = [flow.deciding(axes, predicate)] if cond else []
    new = [c if k else flow.union(axes, [c, o, *decided])
           for c, o, k in util.safe_zip(carry, outs[:len(init)], kept)]
    if all(n.masks == c.masks for n, c in zip(new, carry)):
      return LoopFlows(new, predicate, outs)
    carry = new


def _while_flows(axes, ins, cond_nconsts, cond_jaxpr, body_nconsts, body_jaxpr):
  cond_consts, body_consts, init = util.split_list(
      ins, [cond_nconsts, body_nconsts])
  predicate = lambda carry: flow.call(
      axes, cond_jaxpr.jaxpr, [*cond_consts, *carry])[0]
  body = flow.summarize(body_jaxpr.jaxpr, axes)
  return loop_flows(axes, body_consts, init, [], body, predicate)


@flow.register(loops.while_p)
def _while(axes, ins, /, **params):
  return _while_flows(axes, ins, **params).carry


def _while_rewrite(mesh, in_rep, /, *args, cond_nconsts, cond_jaxpr,
                   body_nconsts, body_jaxpr):
  sizes = [cond_nconsts, body_nconsts]
  params = dict(cond_nconsts=cond_nconsts, body_nconsts=body_nconsts)
  found = _while_flows(flow.Sized(mesh), type_rules.from_reps(mesh, in_rep),
                       cond_jaxpr=cond_jaxpr, body_jaxpr=body_jaxpr, **params)
  carry_rep = divergence.typed(mesh, found.carry)
  decided = type_rules.differing(mesh, type_rules.to_rep(mesh, found.predicate))
  num_consts = sum(sizes)
  const_rep = [reps.less(r, decided) for r in in_rep[:num_consts]]
  args = util.safe_map(type_rules.promote, [mesh] * len(args), args, in_rep,
                       [*const_rep, *carry_rep])
  cond_rep, body_rep = util.split_list(const_rep, [cond_nconsts])
  with divergence.diverging('lax.while_loop', decided):
    cond_jaxpr, _ = sm._replication_rewrite_nomatch(
        mesh, cond_jaxpr, [*cond_rep, *carry_rep])
    body_jaxpr = retype.closed_jaxpr(
        'lax.while_loop', mesh, body_jaxpr, [*body_rep, *carry_rep], carry_rep)
  outs = loops.while_p.bind(*args, cond_jaxpr=cond_jaxpr, body_jaxpr=body_jaxpr,
                            **params)
  return outs, carry_rep


sm._check_rules[loops.while_p] = type_rules.check_rule(loops.while_p)
sm._rewrite_rules[loops.while_p] = _while_rewrite


def _scan_flows(axes, ins, jaxpr, num_consts, num_carry):
  consts, init, xs = util.split_list(ins, [num_consts, num_carry])
  body = flow.summarize(jaxpr.jaxpr, axes)
  found = loop_flows(axes, consts, init, xs, body)
  return [*found.carry, *found.outs[num_carry:]]


@flow.register(loops.scan_p)
def _scan(axes, ins, /, *, jaxpr, num_consts, num_carry, **_):
  outs = _scan_flows(axes, ins, jaxpr, num_consts, num_carry)
  # A row of an output is no copy of what it was stacked from.
  return outs[:num_carry] + [f._replace(source=None) for f in outs[num_carry:]]


def _scan_rewrite(mesh, in_rep, /, *args, jaxpr, num_consts, num_carry,
                  **params):
  outs = _scan_flows(flow.Sized(mesh), type_rules.from_reps(mesh, in_rep),
                     jaxpr, num_consts, num_carry)
  out_rep = divergence.typed(mesh, outs)
  const_rep, _, xs_rep = util.split_list(in_rep, [num_consts, num_carry])
  new_rep = [*const_rep, *out_rep[:num_carry], *xs_rep]
  args = util.safe_map(type_rules.promote, [mesh] * len(args), args, in_rep,
                       new_rep)
  jaxpr = retype.closed_jaxpr('lax.scan', mesh, jaxpr, new_rep, out_rep)
  outs = loops.scan_p.bind(*args, jaxpr=jaxpr, num_consts=num_consts,
                           num_carry=num_carry, **params)
  return outs, out_rep


sm._check_rules[loops.scan_p] = type_rules.check_rule(loops.scan_p)
sm._rewrite_rules[loops.scan_p] = _scan_rewrite
