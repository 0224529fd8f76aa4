# SPDX-License-Identifier: Apache-2.0

"""The least rule for what varies: an output varies wherever an operand does.

Inside ``shard_map`` with the check on, a type holds the manual mesh axes along
which a value may differ between devices. An abstract evaluation rule that
builds its result from shape and dtype alone drops those axes, and the check
then takes each device's own value for a replicated one. ``type_by_union`` gives
a primitive the rule that needs no knowledge of what the primitive computes:

  V(output) = V(declared by the rule or the user) | union of V(operand)

The rule below it is called with replicated operands, so it can neither refuse
what varies nor depend on it. Operands of a differentiable primitive are cast
to the union first, by the base's own cast: the transpose of that cast is the
sum over devices which the gradient of a replicated operand needs.

Nothing is added at run time. Cost at trace time: one look-up of an option per
bind with the check off, and one pass over the operands with it on.

Limits: the rule is too coarse for a primitive that removes an axis (a
collective), that passes operands through one by one, or whose parameters hold
a jaxpr that knows better; those keep rules of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import Any

from jax._src import core
from jax._src.mend import releases
from jax._src import mesh as mesh_lib
from jax._src.interpreters import ad
from jax._src.mapped_interpreters import compile_time
from jax._src.named_sharding import NamedSharding
from jax._src.varying import types as vt
from jax._src.varying.types import Axes, NO_AXES

_cast = releases.cast_operands()


def with_axes(aval, axes: Axes):
  """A type, varying along exactly ``axes``."""
  if not isinstance(aval, core.ShapedArray) or vt.varying(aval) == axes:
    return aval
  mesh = mesh_lib.get_abstract_mesh()
  if aval.sharding.mesh.empty and not mesh.empty:
    # A varying type belongs to the mesh that its axes are of.
    aval = aval.update(sharding=NamedSharding(mesh, aval.sharding.spec))
  return vt.with_varying(aval, axes)


def union(values: Sequence[Any]) -> Axes:
  """All axes along which any of ``values`` (only tracers can vary) differs."""
  return NO_AXES.union(*(vt.varying(x.aval) for x in values
                          if isinstance(x, core.Tracer)))


def promote(values: Sequence[Any]) -> list[Any]:
  """Casts every value to vary along the union of their axes.

  Args:
    values: arrays or array-likes.

  Returns:
    The values; those that varied along fewer axes are cast, by the base's own
    function, which also heeds the base's option against automatic casts.
  """
  values = list(values)
  if not vt.checking() or not union(values):
    return values
  arrays = [i for i, x in enumerate(values)
            if isinstance(vt.typeof(x), core.ShapedArray)]
  for i, x in zip(arrays, _cast(*(values[i] for i in arrays))):
    values[i] = x
  return values


# For the test that looks at all of them.
typed_by_union: set[core.Primitive] = set()


def _typed_by_union(rule):
  def abstract_eval(*avals, **params):
    if not vt.checking():
      return rule(*avals, **params)
    axes = NO_AXES.union(*map(vt.varying, avals))
    outs, effects = rule(*(with_axes(a, NO_AXES) for a in avals), **params)
    if isinstance(outs, (tuple, list)):
      return [with_axes(a, axes | vt.varying(a)) for a in outs], effects
    return with_axes(outs, axes | vt.varying(outs)), effects
  return abstract_eval


def type_by_union(*prims: Any, cast: bool = True) -> None:
  """Types the outputs of each of ``prims`` by the union of its operands' axes.

  Args:
    *prims: the primitives; their abstract evaluation rules must be defined.
    cast: whether to cast the operands to that union too. False for what has no
      gradient, where the cast would be an equation for nothing.
  """
  for prim in prims:
    prim.abstract_eval = _typed_by_union(prim.abstract_eval)
    if cast:
      bind_after_cast(prim)
  typed_by_union.update(prims)


def vary_between_groups(*prims: Any) -> None:
  """Types reductions over groups of devices as different between groups.

  Args:
    *prims: reductions over named axes, whose result they type as the same
      along all of the axes, in whatever groups they reduce. It is the same
      within a group only; one group of all devices is no grouping.
  """
  for prim in prims:
    prim.abstract_eval = _varying_between_groups(prim.abstract_eval)


def _varying_between_groups(rule):
  def abstract_eval(*avals, axes, **params):
    outs, effects = rule(*avals, axes=axes, **params)
    axis_index_groups = params.get('axis_index_groups')  # not all of them have
    if axis_index_groups is None or not vt.checking():
      return outs, effects
    mesh = mesh_lib.get_abstract_mesh()
    apart = [a for a in axes if a in mesh.manual_axes]
    if len(axis_index_groups[0]) == math.prod(mesh.shape[a] for a in apart):
      return outs, effects
    if isinstance(outs, (tuple, list)):
      return [with_axes(a, vt.varying(a).union(apart)) for a in outs], effects
    return with_axes(outs, vt.varying(outs).union(apart)), effects
  return abstract_eval


def bind_after_cast(*prims: Any) -> None:
  """Makes ``bind`` of each of ``prims`` cast its operands to their union."""
  for prim in prims:
    prim.bind = _after_cast(prim.bind)


def _after_cast(bind):
  # A primitive's parameters can have any names, so this takes nothing by name.
  def cast_and_bind(*args, **params):
    return bind(*(promote(args) if vt.checking() else args), **params)
  return cast_and_bind


def keep_apart(prim: core.Primitive) -> None:
  """Types each result of ``prim`` by its own operand; its derivatives as well.

  Args:
    prim: returns its operands as they are. Whoever evaluates an equation of it
      binds it with operands that may vary differently, and what reads a result
      was typed by that result alone.
  """
  def jvp(primals, tangents):
    tangents = [vt.cast(ad.instantiate_zeros(t), vt.varying(vt.typeof(x)))
                for x, t in zip(primals, tangents)]
    return prim.bind(*primals), prim.bind(*tangents)

  def transpose(cts, *operands):
    del operands
    return prim.bind(*map(ad.instantiate_zeros, cts))

  prim.def_abstract_eval(lambda *avals: avals)
  ad.primitive_jvps[prim] = jvp
  ad.primitive_transposes[prim] = transpose


def keep_casts(cast_p: core.Primitive) -> None:
  """Has a cast staged out for a constant, too.

  Under ``jax.ensure_compile_time_eval`` an operation on constants is evaluated
  at once. A constant that was cast so is what it was, and the operation that it
  was cast for refuses it.
  """
  compile_time.keep(cast_p, vt.checking)
