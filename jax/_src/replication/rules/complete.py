# SPDX-License-Identifier: Apache-2.0
"""A rule, or the reason for none, for every primitive that JAX registers.

There are four kinds beside those with a module of their own:

* *standard*: the outputs depend on the operands and on nothing else;
* *uniform*: the same, with functions inside (see ``linear``);
* *device-dependent*: the outputs may differ between any two devices, whatever
  the operands, as for what is fed in to each, or a mutable array, which may be
  written to at any later time, and, without ``refs``, for kernels;
* none, with a reason.

``pure_callback`` is standard: the function is pure, so that equal operands
give equal results. So is an ``ffi_call``, unless it has side effects and no
operand that could tell the devices apart.
"""
from __future__ import annotations

import functools

from jax._src import ad_checkpoint
from jax._src import callback
from jax._src import core
from jax._src import custom_batching
from jax._src import custom_derivatives
from jax._src import debugging
from jax._src import ffi
from jax._src import pjit
from jax._src.lax import lax
from jax._src.lax import parallel
from jax._src.replication.rules import collectives
from jax._src.replication.rules import divergence
from jax._src.replication.rules import flow
from jax._src.replication.rules import linear
from jax._src.replication.rules import lookup
from jax._src.replication.rules import type_rules
from jax._src.state import primitives as state_primitives
from jax.experimental import shard_map as sm


def standard(*primitives) -> None:
  for p in primitives:
    sm.register_standard_check(p)
    sm.register_standard_rewrite(p)


def device_dependent(*primitives) -> None:
  for p in primitives:
    flow.flow_rules[p] = lambda axes, ins, /, **_: flow.made_flow(axes, axes)
    sm._check_rules[p] = type_rules.check_rule(p)
    sm._rewrite_rules[p] = functools.partial(_device_dependent_rewrite, p)


def _device_dependent_rewrite(prim, mesh, in_rep, /, *args, **params):
  args = [type_rules.promote(mesh, x, r, set()) for x, r in zip(args, in_rep)]
  outs = prim.bind(*args, **params)
  outs = outs if prim.multiple_results else [outs]
  return outs, [set() for _ in outs]


def _typed(prim, rule) -> None:
  """Enters a flow rule for a primitive whose operands need no cast."""
  flow.flow_rules[prim] = rule
  type_rules.enter_unchanged(prim)


def _pure_callback(axes, ins, /, *, result_avals, **_):
  return [flow.union(axes, ins)] * len(result_avals)


def _ffi_call(axes, ins, /, *, result_avals, has_side_effect, **_):
  alone = has_side_effect and not ins
  out = flow.made_flow(axes, axes) if alone else flow.union(axes, ins)
  return [out] * len(result_avals)


_typed(callback.pure_callback_p, _pure_callback)
flow.flow_rules[ffi.ffi_call_p] = _ffi_call


def _ffi_call_rewrite(mesh, in_rep, /, *args, **params):
  outs, out_rep = sm._standard_rewrite_rule(
      ffi.ffi_call_p, mesh, in_rep, *args, **params)
  if params['has_side_effect'] and not args:
    out_rep = [set() for _ in outs]
  return outs, out_rep


sm._rewrite_rules[ffi.ffi_call_p] = _ffi_call_rewrite

standard(ad_checkpoint.name_p, pjit.reshard_p, debugging.inspect_sharding_p,
         custom_derivatives.unreachable_p, state_primitives.get_p,
         state_primitives.swap_p, state_primitives.addupdate_p,
         state_primitives.broadcast_to_p, core.freeze_p)
device_dependent(core.mutable_array_p, lax.infeed_p)
_typed(lax.rng_uniform_p, lambda axes, ins, /, **_: flow.made_flow(axes, axes))

linear.register_uniform(custom_batching.custom_vmap_p,
                        lambda params: [params['call'].jaxpr])
linear.register_uniform(custom_derivatives.remat_opt_p,
                        lambda params: [params['fwd_jaxpr'].jaxpr])


def _exchange_rewrite(prim, param, mesh, in_rep, /, *args, **params):
  made = set(collectives.names(params[param]))
  out_rep = set(mesh.axis_names).intersection(*in_rep) - made
  args = [type_rules.promote(mesh, x, r, out_rep) for x, r in zip(args, in_rep)]
  return [prim.bind(*args, **params)], [out_rep]


for _p, _param in ((parallel.pbroadcast_p, 'axis_name'),
                   (parallel.ragged_all_to_all_p, 'axis_name'),
                   (parallel.pgather_p, 'axes')):
  sm._check_rules[_p] = type_rules.check_rule(_p)
  sm._rewrite_rules[_p] = functools.partial(_exchange_rewrite, _p, _param)
  divergence.guard(_p, _param)


@functools.partial(sm._rewrite_rules.__setitem__, core.closed_call_p)
def _closed_call_rewrite(mesh, in_rep, /, *args, call_jaxpr, **params):
  call_jaxpr, out_rep = sm._replication_rewrite_nomatch(
      mesh, call_jaxpr, in_rep)
  outs = core.closed_call_p.bind(*args, call_jaxpr=call_jaxpr, **params)
  return outs, out_rep


def _primitives(module) -> list[core.Primitive]:
  values = [vars(module)[k] for k in sorted(vars(module))]
  return [v for v in values if isinstance(v, core.Primitive)
          and v not in sm._check_rules and v.name not in lookup.reasons]


def _all_standard(module) -> None:
  standard(*_primitives(module))


def _all_device_dependent(module) -> None:
  device_dependent(*_primitives(module))


for _name in (
    'jax.experimental.sparse.bcoo', 'jax.experimental.sparse.bcsr',
    'jax.experimental.sparse.coo', 'jax.experimental.sparse.csr',
    'jax.experimental.sparse.api', 'jax.experimental.sparse._lowerings',
    'jax.experimental.sparse.linalg', 'jax.experimental.rnn',
    'jax._src.nn.functions', 'jax._src.checkify', 'jax._src.shard_alike',
    'jax._src.export._export', 'jax._src.export.shape_poly',
    'jax._src.cudnn.fused_attention_stablehlo',
    'jax._src.cudnn.scaled_matmul_stablehlo'):
  lookup.when_imported(_name, _all_standard)
for _name in ('jax._src.tpu_custom_call', 'jax.experimental.mosaic.gpu.core'):
  lookup.when_imported(_name, _all_device_dependent)


def _custom_dce(module) -> None:
  linear.register_uniform(module.custom_dce_p,
                          lambda params: [params['fun_jaxpr'].jaxpr])
  standard(module.dce_sential_p)


def _custom_partitioning(module) -> None:
  linear.register_uniform(module.custom_partitioning_p,
                          lambda params: [params['call'].jaxpr])


def _cudnn_fusion(module) -> None:
  linear.register_uniform(module.cudnn_fusion_p,
                          lambda params: [params['jaxpr'].jaxpr])


lookup.when_imported('jax._src.custom_dce', _custom_dce)
lookup.when_imported('jax._src.custom_partitioning', _custom_partitioning)
lookup.when_imported('jax._src.cudnn.fusion', _cudnn_fusion)

_METHOD = 'rewritten by a method of the trace, not by a rule'
_KERNEL = 'it exists inside a Pallas kernel only'
_HOST = 'it moves arrays between hosts and cannot be staged in a shard_map'
lookup.reasons.update({
    'call': _METHOD,
    'custom_jvp_call': _METHOD,
    'custom_vjp_call': _METHOD,
    'custom_jvp_call_jaxpr': 'a stub that JAX never binds',
    'custom_transpose_call': 'a private experiment of JAX, which has no '
                             'support for it in shard_map',
    'eval_jaxpr': 'bound only while a scan without jit is evaluated',
    'full_to_shard': 'bound only while pjit is lowered',
    'shard_to_full': 'bound only while pjit is lowered',
    'global_array_to_host_local_array': _HOST,
    'host_local_array_to_global_array': _HOST,
    'shard_map': _METHOD,
    'xla_pmap': 'JAX has no pmap inside a shard_map',
    **dict.fromkeys(
        ['assume_for_verification', 'atomic_cas', 'atomic_rmw', 'bitcast',
         'core_map', 'debug_barrier_p', 'debug_print', 'delay', 'device_id',
         'dma_start', 'dma_wait', 'elementwise_inline_asm_p',
         'get_barrier_semaphore', 'masked_load', 'masked_swap',
         'max_contiguous', 'multiple_of', 'num_programs',
         'pretend_for_verification', 'prng_random_bits', 'prng_seed',
         'program_id', 'reciprocal', 'repeat', 'roll', 'run_scoped',
         'semaphore_read', 'semaphore_signal', 'semaphore_wait'], _KERNEL),
})
