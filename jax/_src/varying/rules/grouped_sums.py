# SPDX-License-Identifier: Apache-2.0
"""Sums within groups of the devices along an axis, inside shard_map.

``lax.psum(x, 'x', axis_index_groups=[[0, 1], [2, 3]])`` is the same on the
devices of a group and differs between groups, so its result varies along the
axis, and its operand does. The sum of cotangents within the same groups is its
transpose: that of device j is the sum of those of all devices that j was summed
into. So the primitive that ``psum`` was before types held axes is the right one
for it, with the type of its operand.

Source: upstream has no rule (NotImplementedError) since 0.6.0.
"""
from __future__ import annotations

from typing import Any

from jax._src import core
from jax._src.varying import types as vt
import numpy as np


def bind(psum_p: core.Primitive, leaves, axes: tuple, groups):
  """The sums within groups, which vary along all of the axes.

  Args:
    psum_p: the sum over devices.
    leaves: an array, or a list of arrays on releases that sum several at once.
    axes: the names of the axes.
    groups: positions along the axes, each in one of the groups.

  Returns:
    An array, or a list of arrays.
  """
  along = lambda x: vt.cast(x, vt.varying(vt.typeof(x)).union(axes))
  if psum_p.multiple_results:
    return psum_p.bind(*map(along, leaves), axes=axes, axis_index_groups=groups)
  return psum_p.bind(along(leaves), axes=axes, axis_index_groups=groups)


def type_by_operands(psum_p: Any) -> None:
  """Has the sum within groups vary as its operand does, and along the axes."""
  rule = psum_p.abstract_eval

  def abstract_eval(*avals, axes, **params):
    outs, effects = rule(*avals, axes=axes, **params)
    if params.get('axis_index_groups') is None or not vt.checking():
      return outs, effects
    if not psum_p.multiple_results:
      outs = [outs]
    typed = [vt.with_varying(o, vt.varying(a).union(axes))
             for o, a in zip(outs, avals)]
    return (typed if psum_p.multiple_results else typed[0]), effects

  psum_p.abstract_eval = abstract_eval


def size(number, axis_name, groups):
  """The number of devices that a mean within groups divides by.

  Args:
    number: the first group's size, which is each one's if they are alike.
    axis_name: the name of an axis, or several.
    groups: positions along the axes, each in one of the groups, or None.

  Returns:
    The number, or that of each device's own group.
  """
  if groups is None or not vt.checking() or len(set(map(len, groups))) == 1:
    return number
  from jax._src.lax import lax, parallel, slicing  # they import this
  sizes = np.zeros(sum(map(len, groups)), np.int32)
  for group in groups:
    sizes[list(group)] = len(group)
  own = slicing.dynamic_index_in_dim(
      lax.asarray(sizes), parallel.axis_index(axis_name), keepdims=False)
  # A mean has the type of what it is of.
  return lax._convert_element_type(  # pylint: disable=protected-access
      own, np.dtype(np.int32), weak_type=True)
