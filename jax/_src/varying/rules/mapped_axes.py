# SPDX-License-Identifier: Apache-2.0
"""Collectives over an axis of ``vmap`` inside ``shard_map``, the check on.

Types hold the mesh axes along which a value varies. An axis that ``vmap`` names
is none of them: what is mapped over it is an array's dimension on each device.
From 0.6.0 on a collective over such an axis is refused, because it casts its
operand to vary along the axis, and a reduction wants it in the operand's type.

Here, casts and types are of the mesh's axes only. A reduction over a mapped
axis gathers along it, which ``vmap`` makes of the dimension that is there, and
reduces that; what it reduces over the mesh's axes is left to upstream.

Cost: a look at the names of the axes of each collective. The compiled program
is that of the reduction of the dimension.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src import tree_util
from jax._src.lax import lax
from jax._src.varying import types as vt
import numpy as np


def _names(axis_name) -> tuple:
  if type(axis_name) is tuple:
    return axis_name
  return tuple(axis_name) if isinstance(axis_name, list) else (axis_name,)


def of_mesh(axis_name) -> tuple:
  """Those of the axes that a type can hold."""
  manual = mesh_lib.get_abstract_mesh().manual_axes
  names = axis_name if type(axis_name) is tuple else _names(axis_name)
  for name in names:  # every collective comes by: in the fewest steps
    if name not in manual:
      return tuple(n for n in names if n in manual)
  return names


def _reduction(name: str) -> Callable[[Any, tuple[int, ...]], Any]:
  return getattr(lax, f'reduce_{name}')


def reducing(name: str):
  """Decorates a reduction over named axes.

  Args:
    name: of the operation, as in the name of ``lax``'s reduction.

  Returns:
    A decorator for ``psum`` and its like, which then takes axes of ``vmap``.
  """
  def decorator(collective):
    @functools.wraps(collective)
    def wrapper(x, axis_name, *, axis_index_groups=None):
      if (type(axis_name) is str and
          axis_name in mesh_lib.get_abstract_mesh().manual_axes):
        # Most come by here: in the fewest steps.
        return collective(x, axis_name, axis_index_groups=axis_index_groups)
      rest = of_mesh(names := _names(axis_name))
      if rest is not names and axis_index_groups is None and vt.checking():
        mapped = [n for n in names
                  if n not in rest and not isinstance(n, int)]
        if mapped:
          leaf = functools.partial(_reduce, collective, name, mapped)
          x = tree_util.tree_map(leaf, x)
          if not rest:
            return x
          axis_name = rest
      return collective(x, axis_name, axis_index_groups=axis_index_groups)
    return wrapper
  return decorator


def _reduce(collective, name: str, mapped: list, x):
  """One array, or number, reduced over axes of ``vmap``."""
  from jax._src.lax import parallel  # pylint: disable=g-import-not-at-top
  if not isinstance(x, core.Tracer):
    return collective(x, tuple(mapped))
  if name == 'sum' and x.dtype == bool:
    x = lax.convert_element_type(x, np.int32)
  for axis in mapped:
    x = _reduction(name)(parallel.all_gather(x, axis), (0,))
  return x


class WithoutGroups:
  """A primitive of a sum that has no groups, bound as if it had some.

  In 0.8.1 to 0.8.3 the rule that ``psum`` and ``psum_invariant`` share under
  ``vmap`` hands groups to both, so that each ``psum`` in a ``shard_map`` with
  the check on was a TypeError under ``vmap``.
  """

  def __init__(self, prim):
    self._prim = prim

  def __getattr__(self, name):
    return getattr(self._prim, name)

  def bind(self, *args, axis_index_groups=None, **params):
    """Binds the primitive without groups where there are none."""
    if axis_index_groups is not None:  # the primitive refuses them
      params['axis_index_groups'] = axis_index_groups
    return self._prim.bind(*args, **params)


def without_groups(rule):
  """A rule for ``vmap`` that binds the primitive it is given without groups."""
  return lambda prim, *args: rule(WithoutGroups(prim), *args)
