# SPDX-License-Identifier: Apache-2.0
"""Casts, reductions over devices, and what else passes operands one by one.

Output k varies over what operand k does, less what a reduction removed when the
equation was traced. A cast that has nothing left to add is dropped.
"""
from __future__ import annotations

from jax._src.mend import anatomy
from jax._src import mesh as mesh_lib
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt


def _cast(b, site: flow.Site) -> None:
  for v, out in zip(site.eqn.invars, site.eqn.outvars):
    axes = b.region.raised.get(out, vt.varying(out.aval))
    b.new[out] = b.cast(v, axes)


def _preduced(b, site: flow.Site) -> None:
  """The cast to reduced, but along axes that the operand now varies over."""
  (v,), (out,) = site.eqn.invars, site.eqn.outvars
  held = b.read(v)
  axes = frozenset(site.eqn.params['axes']) - vt.varying(held.aval)
  if axes:
    retype.copy(b, site, axes=vt.ordered(axes))
  else:
    b.new[out] = held


def _put(b, site: flow.Site) -> None:
  """Re-types a transfer, without the source of a value that comes to vary.

  An eager shard_map tells it of a replicated value that is captured. To there
  the cotangent would go back, in a type that has no such placement.
  """
  srcs = [s if b.read(v) is v else None
          for v, s in zip(site.eqn.invars, site.eqn.params['srcs'])]
  retype.copy(b, site, srcs=type(site.eqn.params['srcs'])(srcs))


def exchanged(axis_name, *operands):
  """The operands of ``ragged_all_to_all``, all varying over its axis.

  What a device gets is its own, though its type is that of what it is written
  to, which can be zeros that all devices have.

  Args:
    axis_name: the name, or names, of the axis.
    *operands: arrays.
  """
  if not vt.checking():
    return operands
  names = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
  manual = mesh_lib.get_abstract_mesh().manual_axes
  axes = flow.union(vt.varying(vt.typeof(x)) for x in operands).union(
      n for n in names if n in manual)
  return [vt.cast(x, axes) for x in operands]


_CASTS = anatomy.CASTS
FLOW_RULES = dict.fromkeys((
    'psum_invariant', 'pmax', 'pmin', 'optimization_barrier', 'device_put',
    *anatomy.named(_CASTS)), flow.each)
BUILDERS = {
    'device_put': _put,
    **dict.fromkeys(anatomy.named(
        _CASTS, anatomy.VARYING, anatomy.FROM_REDUCED), _cast),
    **dict.fromkeys(anatomy.named(_CASTS, anatomy.REDUCED), _preduced)}
