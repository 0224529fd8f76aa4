# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Casts of values that are reduced or unreduced over an axis (0.10 and later).

A value that is reduced over an axis is the same along it, and its cotangent is
left unreduced: a part of the sum on each device. Made to vary along that axis
it is no longer reduced over it, by a cast of its own, ``reduced_vary_cast``,
whose transpose is a cast too: nobody sums. What is unreduced over an axis is
one part of a sum, and is neither the same along the axis nor a value for each
device; it is left as it is, and no promotion concerns it.

Zeros of a type have all of it, so that sums of cotangents can start from them.

Cost: one look-up in the type for each cast.
"""
from __future__ import annotations

from typing import Any

from jax._src import core
from jax._src import dtypes

# Without `ManualAxisType`, in 0.6.0, nothing is reduced.
_HAS = hasattr(core, 'ManualAxisType')
# By name; before 0.12 two of them are called by that of the variable.
CASTS = frozenset(['preduced', 'reduced_vary_cast', 'reduced_vary_cast_p',
                   'vary_unreduced_cast', 'vary_unreduced_cast_p'])


def reduced(aval) -> frozenset:
  """The axes that a value of this type is reduced over."""
  mat = getattr(aval, 'manual_axis_type', None) if _HAS else None
  return mat.reduced if mat is not None else frozenset()


def unreduced(aval) -> frozenset:
  """The axes that a value of this type is unreduced over."""
  mat = getattr(aval, 'manual_axis_type', None) if _HAS else None
  return mat.unreduced if mat is not None else frozenset()


def concerns(aval) -> bool:
  """Whether a value of this type is reduced or unreduced over any axis."""
  return bool(reduced(aval) or unreduced(aval))


def raised(mat, axes: frozenset):
  """The manual axis type, varying along exactly ``axes`` if it can."""
  return mat.update(varying=axes - mat.unreduced, reduced=mat.reduced - axes)


def alike(a, b, axes: frozenset) -> bool:
  """Whether two types differ in nothing but kind along ``axes``."""
  if not _HAS:
    return True
  return (unreduced(a) == unreduced(b)
          and reduced(a) - axes == reduced(b) - axes)


def steps(aval, axes: frozenset) -> list[tuple[core.Primitive, frozenset]]:
  """The casts that make a value vary along ``axes``, each with its axes.

  Args:
    aval: its type, which varies along none of them.
    axes: mesh axes.
  """
  from_reduced = axes & reduced(aval)
  plain = axes - from_reduced - unreduced(aval)
  return [(prim, part) for prim, part in (
      (getattr(core, 'reduced_vary_cast_p', None), from_reduced),
      (core.pvary_p, plain)) if part]


def zeros(x: Any, aval) -> Any:
  """Zeros that vary as ``aval`` says, cast to be (un)reduced as it says too."""
  if concerns(aval) and aval.dtype != dtypes.float0:
    from jax._src.lax import parallel  # imports this module's users
    # An axis that x's mesh lacks, or a check that is off, leaves a cast out.
    order = lambda axes: core.order_wrt_mesh(aval.sharding.mesh, axes)
    if aval.mat.unreduced - core.typeof(x).mat.unreduced:
      axes = order(aval.mat.unreduced)
      x = parallel.vary_unreduced_cast(core.pvary(x, axes), axes)
    if aval.mat.reduced - core.typeof(x).mat.reduced:
      x = parallel.preduced(x, order(aval.mat.reduced))
  return x
