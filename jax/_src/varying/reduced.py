# SPDX-License-Identifier: Apache-2.0
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
from jax._src.mend import anatomy
from jax._src.mend.manual_axes import reduced, unreduced
from jax._src.mend import releases

CASTS = anatomy.named(anatomy.CASTS, anatomy.REDUCED, anatomy.UNREDUCED,
                      anatomy.FROM_REDUCED)


def concerns(aval) -> bool:
  """True if a value of this type is reduced or unreduced over any axis."""
  return bool(reduced(aval) or unreduced(aval))


def alike(a, b, axes: frozenset) -> bool:
  """True if two types differ in nothing but kind along ``axes``."""
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
      (releases.reduced_vary_cast_p(), from_reduced),
      (core.pvary_p, plain)) if part]


def zeros(x: Any, aval) -> Any:
  """Zeros that vary as ``aval`` says, cast to be (un)reduced as it says too."""
  if concerns(aval) and aval.dtype != dtypes.float0:
    from jax._src.lax import parallel  # imports this module's users
    # An axis that x's mesh lacks, or a check that is off, leaves a cast out.
    order = lambda axes: core.order_wrt_mesh(aval.sharding.mesh, axes)
    if unreduced(aval) - unreduced(core.typeof(x)):
      axes = order(unreduced(aval))
      x = parallel.vary_unreduced_cast(core.pvary(x, axes), axes)
    if reduced(aval) - reduced(core.typeof(x)):
      x = parallel.preduced(x, order(reduced(aval)))
  return x
