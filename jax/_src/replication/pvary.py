# SPDX-License-Identifier: Apache-2.0
"""``jax.lax.pvary`` for the base releases that have check_rep.

``pvary(x, 'i')`` says that each device along ``i`` may from here on do
something else with ``x``: it computes nothing, and its transpose is a ``psum``
over ``i``. In a ``shard_map`` with ``check_rep=True`` it becomes the
``pbroadcast`` that the rewrite inserts by itself where a replicated value
meets a varying one; with ``check_rep=False``, where ``shard_map`` sums the
cotangents of replicated arguments at its boundary, it is left out of what is
transposed there (``erase``), so that nothing is summed twice.
"""
from __future__ import annotations

from collections.abc import Hashable
import operator
from typing import Any

from jax._src import core
from jax._src import util
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.lax import parallel
from jax._src.mend import pages
from jax._src.tree_util import tree_map

AxisName = Hashable


def pvary(x: Any, axis_name: AxisName | tuple[AxisName, ...]) -> Any:
  """Marks a value as varying along mesh axes of the enclosing shard_map.

  The value stays what it is. Use it where the place of the sum over devices in
  the backward pass matters: the cotangent of ``x`` is the ``psum`` over
  ``axis_name`` of the cotangent of the result. Without it, ``shard_map``
  inserts the same cast where it is needed. This is the function of the same
  name of JAX 0.6.

  Args:
    x: array or pytree of arrays. Along an axis along which it varies already,
      nothing changes.
    axis_name: the name of a mesh axis, or a tuple of names.

  Returns:
    ``x``, varying along the given axes.

  Raises:
    TypeError: if ``axis_name`` is neither hashable nor a tuple of hashables.
    ValueError: if ``axis_name`` names an axis twice.
    NameError: if an axis is not an axis of an enclosing ``shard_map``,
      ``vmap`` or ``pmap``.
  """
  axes = _check_axes(axis_name)
  if not axes:
    return x
  return tree_map(lambda leaf: pvary_p.bind(leaf, axes=axes), x)


def _check_axes(axis_name) -> tuple[AxisName, ...]:
  if axis_name is None:
    return ()
  axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)
  try:
    twice = len(set(axes)) < len(axes)
  except TypeError:
    raise TypeError(
        'jax.lax.pvary: axis_name must be the name of a mesh axis or a tuple '
        f'of names, got {axis_name!r} of type {type(axis_name).__name__}. For '
        'several axes, pass a tuple.' +
        pages.see('replication.md#what-varies')) from None
  if twice:
    raise ValueError(
        'jax.lax.pvary: axis_name must name each mesh axis once, got '
        f'{axis_name!r}.' +
        pages.see('replication.md#what-varies'))
  env = core.get_axis_env().axis_sizes
  for a in axes:
    if a not in env:
      raise NameError(
          f'jax.lax.pvary: unbound axis name: {a!r}. Expected an axis of an '
          f'enclosing shard_map, vmap or pmap, got one of none; bound here: '
          f'{sorted(map(str, env))}.' +
          pages.see('replication.md#what-varies'))
  return axes


pvary_p = core.Primitive('pvary')
pvary_p.def_abstract_eval(lambda x, *, axes: x)
mlir.register_lowering(pvary_p, lambda ctx, x, *, axes: [x])


def _transpose(ct, x, *, axes):
  del x
  return parallel.psum_p.bind(ct, axes=axes, axis_index_groups=None)


ad.deflinear2(pvary_p, _transpose)


def _batch(axis_data, args, dims, *, axes):
  # Along the axis of the vmap itself, batching is what says it.
  axes = tuple(a for a in axes if a != axis_data.name)
  x, = args
  return pvary_p.bind(x, axes=axes) if axes else x, *dims


batching.fancy_primitive_batchers[pvary_p] = _batch


def erase(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """Returns `jaxpr` without pvary, in the jaxprs inside of it too."""
  subst: dict[core.Var, core.Atom] = {}
  new = lambda x: subst.get(x, x) if isinstance(x, core.Var) else x
  eqns = []
  for e in jaxpr.eqns:
    if e.primitive is pvary_p:
      subst[e.outvars[0]] = new(e.invars[0])
    else:
      eqns.append(e.replace(invars=[new(x) for x in e.invars],
                            params={k: _erase_in(v)
                                    for k, v in e.params.items()}))
  return jaxpr.replace(eqns=eqns, outvars=[new(x) for x in jaxpr.outvars])


def _erase_in(param):
  if isinstance(param, core.Jaxpr):
    return erase(param)
  if isinstance(param, core.ClosedJaxpr):
    return param.replace(jaxpr=erase(param.jaxpr))
  if isinstance(param, (tuple, list)):  # a solve's are in a named tuple
    new = util.safe_map(_erase_in, param)
    if all(map(operator.is_, new, param)):
      return param
    return (type(param)(*new) if hasattr(param, '_fields') else
            type(param)(new))
  return param
