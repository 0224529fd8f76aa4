# SPDX-License-Identifier: Apache-2.0
"""Varying axes that users declare of a call's results.

Callbacks, foreign functions and kernels are given their results' types. One
that says what varies is checked: along fewer axes than the operands it would
give out each device's own value as one that all share.
"""
from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

from jax._src import core
from jax._src.mend import manual_axes
from jax._src.mend import pages
from jax._src import mesh as mesh_lib
from jax._src import tree_util
from jax._src.mend import release_types
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec
from jax._src.varying import types as vt
from jax._src.varying.rules import primitives
from jax._src.varying.types import Axes, NO_AXES


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
  least = primitives.union(operands)
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
          'call, for example by jax.lax.pmax over those axes.' +
          pages.see('varying_primitives.md#callbacks-and-foreign-functions'))
  if impure and not operands:
    manual = frozenset(mesh_lib.get_abstract_mesh().manual_axes)
    declared = [
        manual if axes is None or not axes and leaf.sharding is not None
        else axes for leaf, axes in zip(leaves, declared)]
  return tuple(primitives.with_axes(a, d or NO_AXES)
               for a, d in zip(avals, declared))


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
  return (f'ManualAxisType(varying={said})' if vt.CAN_BE_REDUCED else
          f'vma={said}')


def _show(axes: Axes) -> str:
  return '{' + ', '.join(sorted(map(repr, axes))) + '}'
