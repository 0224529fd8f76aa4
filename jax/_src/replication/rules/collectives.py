# SPDX-License-Identifier: Apache-2.0
"""Flow rules of the primitives that name mesh axes, and of plain calls.

Of the collectives only a reduction over whole axes makes a value replicated;
every other one is typed as varying along its axes. The result of
``all_gather`` is the same everywhere all the same, and known to be: its type
is about the cotangent, and keeps the transpose a ``reduce_scatter``.
"""
from __future__ import annotations

from jax._src import ad_checkpoint
from jax._src import core
from jax._src import custom_derivatives
from jax._src import debugging
from jax._src import dispatch
from jax._src import pjit
from jax._src.lax import lax
from jax._src.lax import parallel
from jax._src.lax.control_flow import conditionals
from jax._src.replication.rules import flow
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm


def names(axis_name) -> tuple:
  """Returns the axes of a collective, given one name or several."""
  return axis_name if isinstance(axis_name, tuple) else (axis_name,)


@flow.register(parallel.psum_p, sm.psum2_p, parallel.pmin_p, parallel.pmax_p)
def _reduction(axes_, ins, /, *, axes, axis_index_groups):
  if axis_index_groups is None:
    return [flow.without(axes_, f, names(axes)) for f in ins]
  # Equal within each group only.
  made = flow.made_flow(axes_, names(axes))
  return [flow.union(axes_, [f, made]) for f in ins]


@flow.register(parallel.all_gather_p)
def _all_gather(axes, ins, /, *, axis_name, axis_index_groups, **_):
  if axis_index_groups is not None:
    return _exchange(axes, ins, axis_name=axis_name)
  return flow.gathered_flow(axes, flow.union(axes, ins), names(axis_name))


@flow.register(parallel.pbroadcast_p)
def _from_one_device(axes, ins, /, *, axis_name, **_):
  return flow.gathered_flow(axes, flow.union(axes, ins), names(axis_name))


@flow.register(parallel.all_to_all_p, parallel.ppermute_p,
               parallel.reduce_scatter_p, parallel.ragged_all_to_all_p)
def _exchange(axes, ins, /, *, axis_name, **_):
  return flow.union(axes, [*ins, flow.made_flow(axes, names(axis_name))])


@flow.register(parallel.pgather_p)
def _pgather(axes_, ins, /, *, axes):
  return flow.union(axes_, [*ins, flow.made_flow(axes_, axes)])


@flow.register(parallel.axis_index_p)
def _axis_index(axes, ins, /, *, axis_name):
  del ins
  return flow.made_flow(axes, names(axis_name))


@flow.register(sm.pbroadcast_p)
def _pbroadcast(axes_, ins, /, *, axes, **_):
  return [flow.cast_flow(axes_, f, axes) for f in ins]


@flow.register(pjit.pjit_p)
def _pjit(axes, ins, /, *, jaxpr, **_):
  return flow.call(axes, jaxpr.jaxpr, ins)


@flow.register(ad_checkpoint.remat_p)
def _remat(axes, ins, /, *, jaxpr, **_):
  return flow.call(axes, jaxpr, ins)


@flow.register(core.call_p)
def _call(axes, ins, /, *, call_jaxpr, **_):
  return flow.call(axes, call_jaxpr, ins)


@flow.register(core.closed_call_p)
def _closed_call(axes, ins, /, *, call_jaxpr, **_):
  return flow.call(axes, call_jaxpr.jaxpr, ins)


# A function with a derivative rule of its own hands nothing through untouched.

@flow.register(custom_derivatives.custom_jvp_call_p)
def _custom_jvp_call(axes, ins, /, *, call_jaxpr, **_):
  outs = flow.call(axes, call_jaxpr.jaxpr, ins)
  return [f._replace(source=None) for f in outs]


@flow.register(custom_derivatives.custom_vjp_call_jaxpr_p)
def _custom_vjp_call_jaxpr(axes, ins, /, *, fun_jaxpr, **_):
  outs = flow.call(axes, fun_jaxpr.jaxpr, ins)
  return [f._replace(source=None) for f in outs]


@flow.register(lax.tie_p)
def _tie(axes, ins):
  del axes
  return ins[0]


@flow.register(dispatch.device_put_p)
def _device_put(axes, ins, /, **_):
  del axes
  return list(ins)


@flow.register(conditionals.platform_index_p)
def _platform_index(axes, ins, /, **_):
  del ins
  return flow.constant(axes)


@flow.register(debugging.debug_callback_p)
def _debug_callback(axes, ins, /, **_):
  del axes, ins
  return []


# The check asks what may differ, and finds no fault with a collective of a
# value that is the same already: what differentiation makes of the rewritten
# program (residuals of several branches share a place) can have coarser or
# finer types than the program had.
# Here for the common ones, without the way over flows.

def _check_exchange(mesh, rep, /, *, axis_name, **_):
  rep = set(mesh.axis_names) if rep is None else rep
  return rep.difference(names(axis_name))


def _check_all_gather(mesh, rep, /, *, axis_name, axis_index_groups, **_):
  if axis_index_groups is not None:
    return _check_exchange(mesh, rep, axis_name=axis_name)
  return None if rep is None else rep.union(names(axis_name))


def check_reduction(prim):
  """Returns the check rule of a reduction over devices."""
  by_flow = type_rules.check_rule(prim)

  def rule(mesh, /, *in_rep, axes, axis_index_groups):
    if axis_index_groups is not None:
      return by_flow(mesh, *in_rep, axes=axes,
                     axis_index_groups=axis_index_groups)
    return [None if r is None else r.union(names(axes)) for r in in_rep]
  return rule


for _p in (parallel.all_to_all_p, parallel.ppermute_p,
           parallel.reduce_scatter_p):
  sm._check_rules[_p] = _check_exchange
sm._check_rules[parallel.all_gather_p] = _check_all_gather
sm._check_rules[sm.psum2_p] = check_reduction(sm.psum2_p)
sm._check_rules[sm.pbroadcast_p] = lambda mesh, /, *in_rep, **_: list(in_rep)
