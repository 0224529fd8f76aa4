# SPDX-License-Identifier: Apache-2.0
"""Varying axes of the results of a Pallas kernel.

A kernel computes from its operands, so its results vary wherever one of them
does, as those of a callback or of ``ffi_call``. One that can tell devices apart
(by an axis index, a device number, memory or semaphores of other devices, or
random bits that it gave no seed for) may tell each something else: its results
vary along all manual axes. A declaration on ``ShapeDtypeStruct`` counts: it
adds axes to the former, and is believed of the latter, which may well have
gathered or summed.

Inside the kernel no type holds varying axes. 0.6.0 traces it with the axes of
the operands, and all releases lower it, in interpret mode, as a program that is
checked once more; here both is done with the check off.

Limits: a kernel is taken to write all of its outputs. Until 0.6.1 there are no
declarations; there ``lax.pmax`` says that results are the same everywhere.
Cost: one walk over a kernel's equations when it is first called.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
import functools
from typing import Any

from jax._src import core
from jax._src.mend import release_types
from jax._src.mend import releases
from jax._src import mesh as mesh_lib
from jax._src.util import weakref_lru_cache
from jax._src.varying import flow
from jax._src.varying.rules import declarations
from jax._src.varying import types as vt
from jax._src.varying.rules import primitives
from jax._src.varying.types import Axes, NO_AXES

# What these do or give depends on more than their operands: on other devices,
# on memory that outlives the call, or on code that isn't JAX's.
APART = frozenset(['get_barrier_semaphore', 'get_global', 'inline_mgpu',
                   'inline_mgpu_p', 'io_callback', 'multimem_load_reduce',
                   'multimem_store', 'semaphore_signal_multicast',
                   'semaphore_signal_parallel'])
# Where each has, among its arguments, the device that it is sent to.
TO_DEVICE = {'dma_start': -1, 'dma_wait': -1, 'semaphore_signal': 3}
_RANDOM, _SEED = 'prng_random_bits', 'prng_seed'
_REMOTE_REFS = ('PeerMemRef', 'MulticastRef')

_checking = releases.check_option()


def _equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
  yield from jaxpr.eqns
  for inner in core.subjaxprs(jaxpr):
    yield from _equations(inner)


def _sent_away(eqn: core.JaxprEqn) -> bool:
  """True if an equation names another device, or memory of one."""
  place = TO_DEVICE.get(vt.name_of(eqn.primitive))
  for value in eqn.params.values():
    if hasattr(value, 'unflatten') and hasattr(value, 'num_leaves'):
      if any(name in str(value) for name in _REMOTE_REFS):
        return True
      if place is not None and value.num_leaves == len(eqn.invars):
        return value.unflatten(eqn.invars)[place] is not None
  return place is not None and not any(
      hasattr(v, 'num_leaves') for v in eqn.params.values())


@weakref_lru_cache
def _named(jaxpr: core.Jaxpr) -> tuple[Axes, bool]:
  """The axes that a kernel's equations name; whether it knows its device."""
  names, found, apart = NO_AXES, set(), False
  for eqn in _equations(jaxpr):
    found.add(eqn.primitive.name)
    names |= frozenset(e.name for e in eqn.effects
                       if isinstance(e, core.NamedAxisEffect))
    apart = apart or _sent_away(eqn)
  return names, (apart or not found.isdisjoint(APART)
                 or _RANDOM in found and _SEED not in found)


def tells_apart(jaxpr: core.Jaxpr, grid_mapping) -> bool:
  """True if a kernel can give devices with equal operands unequal results.

  Args:
    jaxpr: the kernel's.
    grid_mapping: the functions that choose blocks; they can ask too.

  Returns:
    Whether it, or one of those functions, can tell devices apart.
  """
  manual = frozenset(mesh_lib.get_abstract_mesh().manual_axes)
  maps = [m.index_map_jaxpr for m in grid_mapping.block_mappings]
  for each in map(vt.open_jaxpr, (jaxpr, *maps)):
    names, apart = _named(each)
    if apart or names & manual:
      return True
  return False


def out_aval(out_shape):
  """A result's type; without a declaration it varies over nothing yet."""
  with _checking(_checking.value and vt.declared(out_shape) is not None):
    return release_types.out_shape_converter()(out_shape)


def without_axes(avals: Sequence) -> tuple:
  """The operands' types as the kernel sees them."""
  return tuple(vt.with_varying(a, NO_AXES) for a in avals)


def result_types(operands, out_shapes, avals, jaxpr, grid_mapping):
  """The types to bind a kernel with, by what is declared and what it can do.

  Args:
    operands: the kernel's operands, flat.
    out_shapes: what the user gave as result types, flat.
    avals: the types made of them.
    jaxpr: the kernel's.
    grid_mapping: the functions that choose blocks.

  Returns:
    ``avals``, with the axes along which they vary whatever the operands do.

  Raises:
    ValueError: a result of a kernel that only computes is declared to vary
      along fewer axes than the operands.
  """
  if not vt.checking():
    return avals
  if not tells_apart(jaxpr, grid_mapping):
    return declarations.result_types('pallas_call', operands, out_shapes, avals,
                                   declares=True)
  manual = frozenset(mesh_lib.get_abstract_mesh().manual_axes)
  return tuple(
      a if vt.declared(s) is not None
      else primitives.with_axes(a, manual) for a, s in zip(avals, out_shapes))


def _typed(rule):
  def abstract_eval(*avals, **params):
    # 0.6.0's check of types gives variables; later ones turn the option off.
    avals = [getattr(a, 'aval', a) for a in avals]
    outs, effects = rule(*avals, **params)
    if tells_apart(params['jaxpr'], params['grid_mapping']):
      if release_types.structures_declare():
        more = list(map(vt.varying, params['out_avals']))
      else:
        more = [frozenset(mesh_lib.get_abstract_mesh().manual_axes
                          if vt.checking() else ())] * len(outs)
    else:
      axes = NO_AXES.union(*map(vt.varying, avals))
      more = [axes] * len(outs)
    return [primitives.with_axes(a, vt.varying(a) | m)
            for a, m in zip(outs, more)], effects
  return abstract_eval


def type_kernel(prim: Any) -> None:
  """Types the results of ``prim``, the call of a kernel, by its operands.

  The operands are not cast: a kernel has no transpose, so none of a cast that
  came before it would be needed.
  """
  prim.abstract_eval = _typed(prim.abstract_eval)
  primitives.typed_by_union.add(prim)


def lowered_unchecked(lower):
  """Decorates a lowering rule, which may trace once more, with the check off.

  Args:
    lower: the rule.

  Returns:
    A rule that finds no varying axes in any type.
  """
  @functools.wraps(lower)
  def wrapper(ctx, /, *nodes, **params):
    inner = ctx.replace(avals_in=without_axes(ctx.avals_in),
                        avals_out=without_axes(ctx.avals_out))
    with _checking(False):
      out = lower(inner, *nodes, **params)
    if inner.tokens_out is not ctx.tokens_out:
      ctx.set_tokens_out(inner.tokens_out)
    return out
  return wrapper


def _rule(site: flow.Site, ins: list[Axes]) -> None:
  params = site.eqn.params
  flow.ordinary(site, ins)
  site.operands = list(ins)
  for n in vt.written(site.eqn):
    site.writes[n] = flow.union(ins)
  if tells_apart(params['jaxpr'], params['grid_mapping']):
    site.outs = [vt.varying(v.aval) for v in site.eqn.outvars]


FLOW_RULES = {'pallas_call': _rule}
# What it declares then is believed.
BELIEVED = {'pallas_call': lambda params: tells_apart(
    params['jaxpr'], params['grid_mapping'])}
