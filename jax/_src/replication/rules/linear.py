# SPDX-License-Identifier: Apache-2.0
"""Replication rules of custom_linear_solve, linear_call and their like.

``custom_linear_solve`` keeps four functions; the right-hand side b and the
solution x are exchanged by the transpose, so they have one type, the least
that the four agree with: it varies along the axes of b, and along those of
what ``matvec``, ``solve``, ``vecmat`` and ``transpose_solve`` make of such a
value. The constants keep their own types. A solver that ends by a ``psum`` (a
row-block matrix, a distributed dot product) has a replicated solution.

``linear_call`` and other primitives that hold functions given by the user for
both directions are left as they are: all operands and outputs get one type,
which varies along the axes of every operand and of whatever the functions
make vary. Collectives in them follow the convention of ``pmap``, where the
transpose of a psum is a psum. Which outputs are the same on all devices
nonetheless is known one by one (see ``reps``).
"""
from __future__ import annotations

from jax._src import core
from jax._src import custom_derivatives
from jax._src import util
from jax._src.lax.control_flow import solves
from jax._src.replication.rules import divergence
from jax._src.replication.rules import flow
from jax._src.replication.rules import refine
from jax._src.replication.rules import retype
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm


def _solve_flows(axes, ins, const_lengths, jaxprs):
  """Returns the flows of x (and b), leaf by leaf, and of the extra outputs."""
  consts, b = util.split_list(ins, [sum(const_lengths)])
  per_fun = util.split_list(consts, list(const_lengths))
  x, extra = list(b), []
  while True:
    new = x
    for name, jaxpr, cs in zip(jaxprs._fields, jaxprs, per_fun):
      if jaxpr is not None:
        outs = flow.call(axes, jaxpr.jaxpr, [*cs, *x])
        new = [flow.union(axes, pair) for pair in zip(new, outs)]
        if name == 'solve':
          extra = outs[len(b):]
    if all(n.masks == o.masks for n, o in zip(new, x)):
      return new, extra
    x = new


@flow.register(solves.linear_solve_p)
def _linear_solve(axes, ins, *, const_lengths, jaxprs):
  x, extra = _solve_flows(axes, ins, const_lengths, jaxprs)
  return [*x, *extra]


def _linear_solve_rewrite(mesh, in_rep, *args, const_lengths, jaxprs):
  num_consts = sum(const_lengths)
  x, extra = _solve_flows(flow.Sized(mesh), type_rules.from_reps(mesh, in_rep),
                          const_lengths, jaxprs)
  x_rep = divergence.typed(mesh, x)
  extra_rep = divergence.typed(mesh, extra)
  per_fun = util.split_list(in_rep[:num_consts], list(const_lengths))
  args = util.safe_map(type_rules.promote, [mesh] * len(args), args, in_rep,
                       [*in_rep[:num_consts], *x_rep])
  new = []
  for jaxpr, cs in zip(jaxprs, per_fun):
    if jaxpr is not None:
      num_extra = len(jaxpr.out_avals) - len(x_rep)
      # What transpose_solve returns beside the solution is thrown away.
      out_rep = [*x_rep, *extra_rep[:num_extra]]
      if jaxpr is jaxprs.transpose_solve:
        outs = flow.call(flow.Sized(mesh), jaxpr.jaxpr,
                         type_rules.from_reps(mesh, [*cs, *x_rep]))
        out_rep[len(x_rep):] = [
            type_rules.to_rep(mesh, f) for f in outs[len(x_rep):]]
      jaxpr = retype.closed_jaxpr('lax.custom_linear_solve', mesh, jaxpr,
                                  [*cs, *x_rep], out_rep)
    new.append(jaxpr)
  outs = solves.linear_solve_p.bind(
      *args, const_lengths=const_lengths, jaxprs=type(jaxprs)(*new))
  return outs, [*x_rep, *extra_rep]


sm._check_rules[solves.linear_solve_p] = type_rules.check_rule(
    solves.linear_solve_p)
sm._rewrite_rules[solves.linear_solve_p] = _linear_solve_rewrite


def register_uniform(prim, functions, outputs=None):
  """Enters the rules of a primitive with functions that stay as they are.

  Args:
    prim: the primitive.
    functions: function from its parameters to the jaxprs that it may run; the
      first is the one whose results it returns.
    outputs: function from the mesh axes, the operands' flows and that first
      one to the flows of the results.
  """
  outputs = outputs or (lambda axes, ins, jaxpr: flow.call(axes, jaxpr, ins))

  def rule(axes, ins, /, **params):
    used = functions(params)
    made = [f for j in used
            for f in flow.call(axes, j, [flow.constant(axes)] * len(j.invars))]
    varies = flow.halves(axes, flow.union(axes, [*ins, *made]))[0]
    return [flow.Flow((*varies, *flow.halves(axes, f)[1]))
            for f in outputs(axes, ins, used[0])]
  flow.flow_rules[prim] = rule

  def rewrite(mesh, in_rep, /, *args, **params):
    params = divergence.mark_permutes(params)
    divergence.refuse_divergent_within(prim, functions(params))
    flows = rule(flow.Sized(mesh), type_rules.from_reps(mesh, in_rep), **params)
    out_rep = [type_rules.to_rep(mesh, f) for f in flows]
    # They all vary alike; without results there is nothing to agree with.
    dst = out_rep[0] if out_rep else set(mesh.axis_names)
    args = [type_rules.promote(mesh, x, r, dst) for x, r in zip(args, in_rep)]
    outs = prim.bind(*args, **params)
    return outs if prim.multiple_results else [outs], out_rep

  refine.makers.add(prim)
  sm._check_rules[prim] = type_rules.check_rule(prim)
  sm._rewrite_rules[prim] = rewrite


def _callee_and_transpose(params) -> list[core.Jaxpr]:
  return [params['callee'].jaxpr, params['transpose'].jaxpr]


register_uniform(custom_derivatives.linear_call_p, _callee_and_transpose)
