# SPDX-License-Identifier: Apache-2.0
"""Operations along automatic axes where devices diverge.

XLA splits these along the axes of a mesh that a ``shard_map`` leaves automatic.
Where shards need their neighbours' elements (shifts, reversals, windows,
updates of a slice), or a layout has its axes swapped, it sends them by its
collective permute. On CPU that waits for all devices of the mesh
(``mend.permute``), so in a loop or branch at which devices diverge it never
ends. XLA's other collectives have groups, and wait for no device that isn't
there.

When such a loop or branch is lowered for CPU, what moves elements is given its
operands whole, on each device along the automatic axes, and so is its result.
XLA gathers them, in groups. The program's jaxpr stays. The lowered text stays,
too, where nothing moves elements, where no devices diverge, on other platforms.

With one automatic axis of several devices ``_MOVES`` lists what moves elements.
With more of them any operation may swap axes, and so may a loop or call that
hands on one value as another: all count, and so do the results of what they
apply.

Limits: with the check off no predicate's type says that devices diverge.

Cost: on CPU, room for these operands, whole, and their gather. While lowering,
one pass over the jaxprs of loops and branches at which devices diverge.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax._src import config
from jax._src import core
from jax._src.interpreters import mlir
from jax._src.mend import jaxprs
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec
from jax._src.util import weakref_lru_cache
from jax._src.varying import contents
from jax._src.varying import flow
from jax._src.varying import types as vt

# XLA moves elements to neighbours for these, or for what they are lowered to.
_MOVES = frozenset([
    'concatenate', 'conv_general_dilated', 'cumlogsumexp', 'cummax', 'cummin',
    'cumprod', 'cumsum', 'dynamic_update_slice', 'fft', 'pad',
    'reduce_window', 'reduce_window_max', 'reduce_window_min',
    'reduce_window_sum', 'reshape', 'rev',
    'select_and_gather_add', 'select_and_scatter', 'select_and_scatter_add',
    'slice', 'split', 'tile'])
# And for these without jax_threefry_partitionable, as they concatenate halves.
_RANDOM = frozenset(['random_bits', 'random_fold_in', 'random_split',
                     'threefry2x32'])

# In jaxprs that are being lowered, only.
whole_p = core.Primitive('whole')


def _lower_whole(ctx, x):
  aval = core.physical_aval(ctx.avals_in[0])  # of a key, its words
  context = ctx.module_context.axis_context
  if set(context.mesh.axis_names) == set(context.manual_axes):
    return [x]  # in a nested shard_map
  sharding = mlir.add_manual_axes(
      context, NamedSharding(context.mesh, PartitionSpec()), aval.ndim)
  placed = (sharding._to_sdy_sharding(aval.ndim)
            if config.use_shardy_partitioner.value else
            sharding._to_xla_hlo_sharding(aval.ndim).to_proto())
  return [mlir.wrap_with_sharding_op(ctx, x, aval, placed)]


mlir.register_lowering(whole_p, _lower_whole)


def branches(ctx, index: core.AbstractValue, closed: tuple) -> tuple:
  """The branches of a cond that is lowered, changed if devices diverge.

  Args:
    ctx: the lowering rule's context.
    index: the type of the branch's index.
    closed: the branches' jaxprs.
  """
  several = _several(ctx, index)
  if several is None:
    return closed
  if not any(_moves(jaxprs.open_jaxpr(j), several) for j in closed):
    return closed
  # XLA wants the results of all branches at one place.
  return jaxprs.map_jaxprs(
      lambda j: _with_whole_results(_changed(j, several)), closed)


def loop(ctx, cond: Any, body: Any) -> tuple[Any, Any]:
  """The jaxprs of a while loop that is lowered, changed if devices diverge.

  Args:
    ctx: the lowering rule's context.
    cond: the predicate's jaxpr.
    body: the body's.
  """
  several = _several(ctx, jaxprs.open_jaxpr(cond).outvars[0].aval)
  if several is None:
    return cond, body
  return jaxprs.map_jaxprs(lambda j: _applied(j, several), (cond, body))


def _several(ctx, predicate: core.AbstractValue) -> bool | None:
  """True if there are several automatic axes where devices diverge, on CPU.

  None if no device parts there, or XLA splits nothing.
  """
  axes = vt.varying(predicate)
  context = ctx.module_context.axis_context
  mesh = getattr(context, 'mesh', None)
  if not axes or mesh is None or (
      'cpu' not in (ctx.platforms or ctx.module_context.platforms)):
    return None
  manual = context.manual_axes
  automatic = [a for a, n in mesh.shape.items() if a not in manual and n > 1]
  if not automatic or all(mesh.shape.get(a) == 1 for a in axes):
    return None
  return len(automatic) > 1


def _within(eqn: core.JaxprEqn) -> Iterator[core.Jaxpr]:
  """The jaxprs that the equation applies to its operands; no kernel's."""
  if flow.applies_jaxpr(eqn.primitive, eqn.params) and (
      vt.name_of(eqn.primitive) != 'pallas_call'):
    yield from contents.jaxprs_in(eqn.params)


def _moves_elements(eqn: core.JaxprEqn, several: bool) -> bool:
  if any(vt.is_ref(v.aval) for v in eqn.invars):
    return False
  name = vt.name_of(eqn.primitive)
  return several or name in _MOVES or (
      name in _RANDOM and not eqn.ctx.threefry_partitionable)


@weakref_lru_cache
def _moves(jaxpr: core.Jaxpr, several: bool) -> bool:
  """True if what the jaxpr holds may move elements between shards."""
  if several and any(map(_is_array, jaxpr.outvars)):
    return True
  for eqn in jaxpr.eqns:
    inside = list(_within(eqn))
    if (any(_moves(j, several) for j in inside) if inside
        else _moves_elements(eqn, several)):
      return True
  return False


@weakref_lru_cache
def _changed(jaxpr: core.Jaxpr, several: bool) -> core.Jaxpr:
  """The jaxpr, in which what moves elements has whole operands and results."""
  if not _moves(jaxpr, several):
    return jaxpr
  eqns: list[core.JaxprEqn] = []
  for eqn in jaxpr.eqns:
    inside = next(_within(eqn), None) is not None
    if inside:
      eqn = eqn.replace(params={
          name: jaxprs.map_jaxprs(lambda j: _applied(j, several), x)
          for name, x in eqn.params.items()})
    if several if inside else _moves_elements(eqn, several):
      outs = [vt.new_var(v.aval) if _is_array(v) else v for v in eqn.outvars]
      ins = [_whole(v, eqn, eqns) for v in eqn.invars]
      eqns.append(eqn.replace(invars=ins, outvars=outs))
      eqns.extend(_equation(out, v, eqn)
                  for v, out in zip(eqn.outvars, outs) if out is not v)
    else:
      eqns.append(eqn)
  return jaxpr.replace(eqns=eqns)


@weakref_lru_cache
def _applied(jaxpr: core.Jaxpr, several: bool) -> core.Jaxpr:
  """A jaxpr within another, changed; it may hand on one value as another."""
  changed = _changed(jaxpr, several)
  return _with_whole_results(changed) if several else changed


def _with_whole_results(jaxpr: core.Jaxpr) -> core.Jaxpr:
  eqns = list(jaxpr.eqns)
  return jaxpr.replace(
      outvars=[_whole(v, None, eqns) for v in jaxpr.outvars], eqns=eqns)


def _is_array(v: Any) -> bool:
  return isinstance(v.aval, core.ShapedArray) and bool(v.aval.shape) and (
      type(v) is core.Var)


def _whole(v: Any, like: core.JaxprEqn | None,
           eqns: list[core.JaxprEqn]) -> Any:
  """Adds an equation that makes a value whole, and returns its variable."""
  if not _is_array(v):
    return v
  out = vt.new_var(v.aval)
  eqns.append(_equation(v, out, like))
  return out


def _equation(v: core.Var, out: core.Var,
              like: core.JaxprEqn | None) -> core.JaxprEqn:
  return core.new_jaxpr_eqn(
      [v], [out], whole_p, {}, core.no_effects,
      like and like.source_info, like and like.ctx)
