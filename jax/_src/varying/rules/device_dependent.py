# SPDX-License-Identifier: Apache-2.0

"""Results that differ between devices whatever the operands are.

A generator whose state is the device's own, an infeed, and a foreign function
with a side effect that is told nothing: no operand says that each device gets
something else. By the rule that a result varies where an operand does they
would be the same everywhere, ``out_specs=P()`` would be accepted, and each
device's own number given out as the one. They are typed as varying along all
manual axes instead, as ``axis_index`` is along its own.

Nothing is added at run time; at trace time, one look-up of an option per bind.

Limits: a foreign function that is told the same on all devices, and answers
something else on each, is not known for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src import mesh as mesh_lib
from jax._src.varying import types as vt
from jax._src.varying.rules import primitives


def _always(avals, params) -> bool:
  del avals, params
  return True


def has_no_operand(avals, params) -> bool:
  """True if a call with a side effect has no operand."""
  return params['has_side_effect'] and not avals


def vary_along_all_axes(*prims: Any,
                        where: Callable[..., bool] = _always) -> None:
  """Types the results of each of ``prims`` as varying along all manual axes.

  Args:
    *prims: the primitives; their abstract evaluation rules must be defined.
    where: of the operands' types and the parameters, whether the rule applies.
      Results that are declared to vary along some axes keep these.
  """
  for prim in prims:
    prim.abstract_eval = _varying(prim.abstract_eval, where)


def _varying(rule, where):
  def abstract_eval(*avals, **params):
    outs, effects = rule(*avals, **params)
    if not vt.checking() or not where(avals, params):
      return outs, effects
    manual = frozenset(mesh_lib.get_abstract_mesh().manual_axes)
    widened = lambda aval: (aval if where is not _always and vt.varying(aval)
                            else primitives.with_axes(aval, manual))
    if isinstance(outs, (tuple, list)):
      return [widened(a) for a in outs], effects
    return widened(outs), effects
  return abstract_eval
