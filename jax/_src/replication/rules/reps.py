# SPDX-License-Identifier: Apache-2.0
"""The type of a value that varies and is known to be the same all the same.

A type is the set of axes along which a value is replicated. It decides how the
value's cotangent is kept: one total on all devices, or a part on each. The
result of ``all_gather`` is of the second kind, which makes its transpose a
``reduce_scatter``, and yet all devices have the same. ``Rep`` is a type that
remembers so. Where it is forgotten (an operation on sets gives a plain one),
the value counts as different.
"""
from __future__ import annotations

from typing import Any


class Rep(set):
  """The type of a value known to be the same along further axes.

  Attributes:
    equal: the axes along which it is the same on all devices.
  """
  __slots__ = ('equal',)

  def __init__(self, axes=(), equal=()):
    super().__init__(axes)
    self.equal = self.union(equal)


def equal(rep) -> Any:
  """The axes along which a value of type `rep` is the same everywhere."""
  return rep.equal if isinstance(rep, Rep) else rep


def less(rep, axes) -> set[Any]:
  """The type of a value that is cast to vary along `axes`."""
  return Rep(rep - axes, equal(rep)) if rep & axes else rep


def meet(*reps) -> set[Any]:
  """The type of a value that has each of the types."""
  rep = set.intersection(*reps)
  same = set.intersection(*map(equal, reps))
  return rep if rep == same else Rep(rep, same)
