# SPDX-License-Identifier: Apache-2.0
"""Manual mesh axes in a type, however the release spells them.

Inside of a ``shard_map`` with the check on, an array's type holds the axes
along which the value may differ between devices: ``aval.vma`` in 0.6.0, a
manual axis type, which tells the reduced and unreduced ones as well, from
0.10.2 on. Types of 0.5.3 hold none. All that depends on that spelling is here;
``varying.types`` computes with these sets.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import operator
from typing import Any

from jax._src import core
from jax._src.mend import release_types

Axes = frozenset
NO_AXES: Axes = frozenset()

AXES_OF_ARRAY = release_types.axes_in_types()
# Of manual axis types, which may be reduced; not 0.6.0's sets.
CAN_BE_REDUCED = release_types.types_can_be_reduced()
# The name of what tells the axes, in a type and in a structure.
FIELD = 'manual_axis_type' if CAN_BE_REDUCED else 'vma'

# Of an array's type, in the fewest steps.
axes_of_array: Callable[[Any], Axes] = (
    operator.attrgetter(AXES_OF_ARRAY) if AXES_OF_ARRAY else
    lambda aval: NO_AXES)


def varying(aval) -> Axes:
  """The axes along which a value of this type may differ."""
  if isinstance(aval, core.ShapedArray):
    return axes_of_array(aval)
  return varying(aval.inner_aval) if hasattr(aval, 'inner_aval') else NO_AXES


def vary_alike(types: Sequence[Any], others: Sequence[Any]) -> bool:
  """True if types vary over the same axes, each as its counterpart.

  Args:
    types: of arrays, refs or tokens.
    others: likewise, at least as many.

  Returns:
    True if so; asked of all operands of each loop, so in the fewest steps.
  """
  if all(map(operator.is_, types, others)):
    return True
  try:
    return all(map(operator.eq, map(axes_of_array, types),
                   map(axes_of_array, others)))
  except AttributeError:  # not arrays
    return all(map(operator.eq, map(varying, types), map(varying, others)))


def reduced(aval) -> Axes:
  """The axes that a value of this type is reduced over."""
  manual = getattr(aval, 'manual_axis_type', None) if CAN_BE_REDUCED else None
  return NO_AXES if manual is None else manual.reduced


def unreduced(aval) -> Axes:
  """The axes that a value of this type is unreduced over."""
  manual = getattr(aval, 'manual_axis_type', None) if CAN_BE_REDUCED else None
  return NO_AXES if manual is None else manual.unreduced


def differing(aval) -> Axes:
  """The axes along which a type lets a value differ, of each kind.

  From 0.8.2 to 0.10.1 the sharding alone says what is unreduced.
  """
  spec = getattr(getattr(aval, 'sharding', None), 'spec', None)
  return varying(aval) | unreduced(aval) | Axes(getattr(spec, 'unreduced', ()))


def declared(structure) -> Axes | None:
  """The varying axes that a result's description declares, None if it doesn't.

  Args:
    structure: a ``jax.ShapeDtypeStruct`` or its like.
  """
  if AXES_OF_ARRAY == 'vma':
    return getattr(structure, 'vma', None)  # 0.6.0's own have none
  # None up to 0.6.0, whose types hold no axes otherwise.
  manual = (getattr(structure, 'manual_axis_type', None)
            if CAN_BE_REDUCED else None)
  return None if manual is None else manual.varying


def stated(said: Any) -> bool:
  """True if what a structure has for axes says anything: names any axis."""
  return bool(said) and not getattr(said, 'empty', False)


def with_axes(aval: core.ShapedArray, axes: Axes) -> core.ShapedArray:
  """An array's type, varying along exactly ``axes``, reduced along none."""
  if not CAN_BE_REDUCED:
    return aval.update(vma=axes)
  mat = aval.manual_axis_type
  return aval.update(manual_axis_type=mat.update(
      varying=axes - mat.unreduced, reduced=mat.reduced - axes))


def with_axes_of(aval: core.ShapedArray, other) -> core.ShapedArray:
  """An array's type, varying and reduced as another one is, from 0.10.2 on."""
  return aval.update(manual_axis_type=other.manual_axis_type)


def on_mesh(structure, sharding):
  """A description of a result, with a sharding, that declares what it did."""
  return release_types.structure_class()(
      structure.shape, structure.dtype, sharding=sharding,
      weak_type=structure.weak_type, **{FIELD: getattr(structure, FIELD)})
