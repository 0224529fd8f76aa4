# SPDX-License-Identifier: Apache-2.0
"""Replication rules of what runs a function of references.

``run_state`` and ``for_loop`` (on which some of JAX's own functions are built)
are typed by what their body is without references, a loop by the fixpoint of
its body; the body stays as it is, as that of ``linear_call`` does.

A Pallas kernel computes from its operands, and its results vary along the axes
of each of them, unless something in it can tell the devices apart: an axis
index or device number, memory of another device, a generator of random
numbers, or a primitive that is not known here. The results of such a kernel
may differ everywhere.

Limits: a kernel is taken to write all of its outputs, and a body the references
that come without a value; otherwise they hold whatever was in memory.
"""
from __future__ import annotations

from jax._src import core
from jax._src import custom_derivatives
from jax._src import pjit
from jax._src import util
from jax._src.lax.control_flow import conditionals
from jax._src.lax.control_flow import for_loop
from jax._src.lax.control_flow import loops as lax_loops
from jax._src.mend import foreign
from jax._src.replication.rules import flow
from jax._src.replication.rules import linear
from jax._src.replication.rules import lookup
from jax._src.replication.rules import loops
from jax._src.replication.rules import refine
from jax._src.replication.rules import type_rules
from jax._src.state import discharge
from jax.experimental import shard_map as sm


@util.weakref_lru_cache
def _without_refs(jaxpr: core.Jaxpr) -> core.Jaxpr:
  return discharge.discharge_state(jaxpr, ())[0]


def _body(params) -> list[core.Jaxpr]:
  return [_without_refs(params['jaxpr'])]


def _loop(axes, ins, jaxpr):
  body = flow.summarize(jaxpr, axes)
  index = flow.constant(axes)
  return loops.loop_flows(axes, [index], list(ins), [], body).carry


linear.register_uniform(for_loop.for_p, _body, _loop)


def _run_state(axes, ins, jaxpr):
  # Those that are no operands hold whatever is in memory until written to.
  missing = len(jaxpr.invars) - len(ins)
  return flow.call(axes, jaxpr, [*ins, *[flow.constant(axes)] * missing])


linear.register_uniform(discharge.run_state_p, _body, _run_state)

_CONTROL_FLOW = (
    pjit.pjit_p, core.closed_call_p, lax_loops.scan_p, lax_loops.while_p,
    conditionals.cond_p, for_loop.for_p, discharge.run_state_p,
    custom_derivatives.custom_jvp_call_p,
    custom_derivatives.custom_vjp_call_jaxpr_p)
_OF_KERNELS = (
    'program_id', 'num_programs', 'masked_load', 'masked_swap', 'multiple_of',
    'max_contiguous', 'repeat', 'roll', 'reciprocal', 'bitcast', 'run_scoped',
    'debug_print')


def _only_computes(jaxpr: core.Jaxpr) -> bool:
  for e in jaxpr.eqns:
    if not (flow.is_standard(e.primitive) or e.primitive in _CONTROL_FLOW
            or foreign.name_of(e.primitive) in _OF_KERNELS):
      return False
  return all(map(_only_computes, core.subjaxprs(jaxpr)))


def _kernel(axes, ins, /, *, jaxpr, grid_mapping, out_avals, **params):
  maps = [m.index_map_jaxpr.jaxpr for m in grid_mapping.block_mappings]
  if params.get('mesh') is None and all(map(_only_computes, [jaxpr, *maps])):
    out = flow.union(axes, ins)
  else:
    out = flow.made_flow(axes, axes)
  return [out] * len(out_avals)


def enter_kernels(module) -> None:
  """Enters the rules of ``pallas_call``, given the module that defines it."""
  prim = module.pallas_call_p

  def rewrite(mesh, in_rep, /, *args, **params):
    flows = _kernel(flow.Sized(mesh), type_rules.from_reps(mesh, in_rep),
                    **params)
    out_rep = [type_rules.to_rep(mesh, f) for f in flows]
    dst = set(mesh.axis_names).intersection(*in_rep, *out_rep)
    args = [type_rules.promote(mesh, x, r, dst) for x, r in zip(args, in_rep)]
    return prim.bind(*args, **params), out_rep

  flow.flow_rules[prim] = _kernel
  refine.makers.add(prim)
  sm._check_rules[prim] = type_rules.check_rule(prim)
  sm._rewrite_rules[prim] = rewrite


lookup.when_imported('jax._src.pallas.pallas_call', enter_kernels)
