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
import functools
import math
from typing import Any

from jax._src import config
from jax._src import core
from jax._src.mend import manual_axes
from jax._src.mend import releases
from jax._src import mesh as mesh_lib
from jax._src import tree_util
from jax._src.interpreters import ad
from jax._src.mend import release_types
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec
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


def type_by_union(*prims: core.Primitive, cast: bool = True) -> None:
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


def vary_between_groups(*prims: core.Primitive) -> None:
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


def bind_after_cast(*prims: core.Primitive) -> None:
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
  """Makes ``bind`` of a cast stage it out for a constant, too.

  Under ``jax.ensure_compile_time_eval`` an operation on constants is evaluated
  at once. A constant that was cast so is what it was, and the operation that it
  was cast for refuses it.
  """
  bind = cast_p.bind

  def staged_bind(*args, **params):
    if config.eager_constant_folding.value and vt.checking():
      with config.eager_constant_folding(False):
        return bind(*args, **params)
    return bind(*args, **params)

  cast_p.bind = staged_bind


def result_types(name: str, operands: Sequence[Any], declarations,
                 avals: Sequence[Any] = (), *, impure: bool = False,
                 declares: bool = release_types.shapes_tell_their_mesh()):
  """Reads and checks what the user declares to vary about a call's results.

  Args:
    name: the public function, for the error.
    operands: the call's operands, flat.
    declarations: a pytree of what the user gave as result types. Only a
      ``ShapeDtypeStruct`` declares, by the argument that the base has for it.
      One from ``jax.eval_shape`` says what another value varies along; it
      mostly has a sharding as well, or no axes. Then it declares nothing that
      the operands don't: results vary along the operands' axes too. Before 0.8
      it can't be told from the user's, so there none is refused.
    avals: the flat result types, without varying axes.
    impure: whether the results can depend on more than the operands. Without
      an operand or a declaration they then vary along all manual axes, since
      each device may be told something else.

  Returns:
    ``avals``, as a tuple, with the declared axes.

  Raises:
    ValueError: a result is declared to vary along too few axes.
  """
  if not vt.checking():
    return tuple(avals)
  least = union(operands)
  leaves = tree_util.tree_leaves(
      declarations, is_leaf=lambda x: x is core.abstract_token)
  declared = [vt.declared(leaf) if declares else None for leaf in leaves]
  told = release_types.shapes_tell_their_mesh()
  for i, (leaf, axes) in enumerate(zip(leaves, declared)):
    if axes and told and leaf.sharding is None and least - axes:
      raise ValueError(
          f'{name}: the operands vary over the mesh axes {_show(least)}, so '
          f'result {i} must be declared to vary over them at least, but its '
          f'ShapeDtypeStruct says {_show(axes)}. Leave the declaration out to '
          'let results vary like the operands, or declare '
          f'{_declaration(least | axes)}. If the '
          'result is the same on all devices nevertheless, say so after the '
          'call, for example by jax.lax.pmax over those axes.')
  if impure and not operands:
    manual = frozenset(mesh_lib.get_abstract_mesh().manual_axes)
    declared = [
        manual if axes is None or not axes and leaf.sharding is not None
        else axes for leaf, axes in zip(leaves, declared)]
  return tuple(with_axes(a, d or NO_AXES) for a, d in zip(avals, declared))


def takes_declarations(name: str):
  """Decorates a function that makes a call from result types given to it.

  Upstream's own function reads a declaration where the call is made rather
  than where it is used, and fails on one without a mesh.

  Args:
    name: the public function, for errors.

  Returns:
    A decorator for ``make(target_name, result_shape_dtypes, **options)``, as
    upstream names them. A call made from result types that declare no varying
    axes is upstream's, untouched.
  """
  def decorator(make):
    @functools.wraps(make)
    def wrapper(target_name, result_shape_dtypes, **options):
      results = result_shape_dtypes
      leaves = results if isinstance(results, Sequence) else [results]
      if all(vt.declared(leaf) is None for leaf in leaves):
        return make(target_name, results, **options)

      def types(convert):
        return (type(results)(map(convert, leaves))
                if isinstance(results, Sequence) else convert(results))

      undeclared = make(target_name, types(_undeclared), **options)

      @functools.wraps(undeclared)
      def call(*operands, **attributes):
        if not vt.checking():
          return undeclared(*operands, **attributes)
        result_types(name, operands, results)
        declared = make(target_name, types(_on_this_mesh), **options)
        return declared(*operands, **attributes)
      return call
    return wrapper
  return decorator


def _undeclared(leaf):
  return leaf if vt.declared(leaf) is None else core.ShapeDtypeStruct(
      leaf.shape, leaf.dtype, sharding=leaf.sharding, weak_type=leaf.weak_type)


def _on_this_mesh(leaf):
  if vt.declared(leaf) is None or leaf.sharding is not None:
    return leaf
  sharding = NamedSharding(mesh_lib.get_abstract_mesh(),
                           PartitionSpec(*[None] * len(leaf.shape)))
  return manual_axes.on_mesh(leaf, sharding)


def _declaration(axes: Axes) -> str:
  said = set(map(str, axes))
  return f'ManualAxisType(varying={said})' if vt.LATER else f'vma={said}'


def _show(axes: Axes) -> str:
  return '{' + ', '.join(sorted(map(repr, axes))) + '}'
