# SPDX-License-Identifier: Apache-2.0
"""The mesh of a computation that nothing but its types places.

Over Explicit axes a type holds its mesh, without the devices. What has operands
finds these in them. What has none, eagerly and without ``jax.set_mesh``, was
refused: the cotangent that ``jax.grad`` begins with, the zeros for an argument
that a function ignores, a transposed call. (``jax.make_mesh`` gives Explicit
axes from 0.9 on, so ``jax.grad`` of a function of arrays over such a mesh, of a
``shard_map`` for one, failed without ``jit``.)

``jax.grad`` knows more: its cotangent is made, and pulled back, where the value
is. ``jax.jit`` knows its arguments, also those of which a compiled function has
no use, as the gradient of what is linear. A pullback of ``jax.vjp`` and what
``jax.linear_transpose`` returns know their cotangents, and the values that they
were made of. Elsewhere, a computation is placed on the mesh of that type if
this process has one. If there are several, over other devices or in another
order, it is refused as before, for what the types leave open can't be known.
Nothing changes where an argument, a layout, a context or
``lowering_platforms`` says more.

Limits: an executable of ``jax.jit`` whose arguments name no mesh stays on the
one that was the only one when it was made.

Cost: nothing but a look at the results' types, where none has Explicit axes.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
import contextlib
import functools
from typing import Any

import numpy as np

from jax._src import core
from jax._src import dtypes
from jax._src.mend import releases
from jax._src.mend import traces
from jax._src import mesh as mesh_lib
from jax._src.meshes import known
from jax._src.named_sharding import NamedSharding
from jax._src.sharding_impls import UnspecifiedValue
from jax._src import tree_util


def mesh_of(context: Any, jaxpr: Any, avals: Sequence[Any],
            shardings: Sequence[Any], platforms: Sequence[str] | None,
            given: Sequence[Any] = ()) -> Any:
  """The mesh that a computation runs on.

  Args:
    context: the mesh of the context; empty or None if there is none.
    jaxpr: the computation.
    avals: the types of its results.
    shardings: those of its arguments and results.
    platforms: what it is lowered for, if that was said.
    given: the shardings of its arguments, those that it doesn't use among them.

  Returns:
    `context`; or, if that is empty, the one mesh that results' types can mean:
    that of the arguments that have it, or the only one of that type.
  """
  if context is not None and not context.empty or platforms is not None:
    return context
  meant = _meant(avals)
  if len(meant) != 1 or not all(isinstance(s, UnspecifiedValue)
                                for s in shardings):
    return context
  from jax._src import dispatch  # pylint: disable=g-import-not-at-top
  if any(_places(s) for s, _ in dispatch.get_intermediate_shardings(jaxpr)):
    return context
  named = {s.mesh for s in given if isinstance(s, NamedSharding)
           and isinstance(s.mesh, mesh_lib.Mesh)
           and s.mesh.abstract_mesh in meant}
  if named:
    return named.pop() if len(named) == 1 else context
  return _only_one(*meant) or context


def on_mesh_of(value: Any, pull_back: Callable[[], Any]) -> Any:
  """The result of ``pull_back``, run on the mesh of the value that it is of.

  Args:
    value: a function's value; nothing but an array over Explicit axes counts.
    pull_back: makes the value's cotangent, and pulls it back.
  """
  from jax._src import array  # pylint: disable=g-import-not-at-top
  sharding = value.sharding if isinstance(value, array.ArrayImpl) else None
  if not isinstance(sharding, NamedSharding) or not _is_placeless(
      sharding.mesh):
    return pull_back()
  with _use_concrete(sharding.mesh):
    return pull_back()


class _Placed(list):
  """Types of a function's results, with the mesh that they are over.

  Attributes:
    abstract: the mesh in the types.
    mesh: the one that the results themselves are over, if they say so.
  """
  abstract: Any
  mesh: Any


def placed(avals: Sequence[Any], values: Any) -> Sequence[Any]:
  """Types that know the mesh of a function's values, for ``pulled_back``.

  Args:
    avals: the types.
    values: what names the mesh, if it is there: arrays, or descriptions.

  Returns:
    ``avals`` themselves where they aren't over a mesh with Explicit axes.
  """
  meant = _meant(avals)
  if len(meant) != 1:
    return avals
  types = _Placed(avals)
  types.abstract, = meant
  types.mesh = _named(values, types.abstract)
  return types


def pulled_back(pull_back):
  """Has a pullback run on the mesh of its cotangent, or else of its value.

  Args:
    pull_back: a function that has ``placed`` types among its arguments, and the
      cotangent last.
  """
  @functools.wraps(pull_back)
  def run(*args, **kwargs):
    for types in args:
      if isinstance(types, _Placed):
        return _on_mesh(types, pull_back, args, kwargs)
    return pull_back(*args, **kwargs)
  return run


def transposed(function: Callable[..., Any], avals: Sequence[Any],
               primals: Sequence[Any]) -> Callable[..., Any]:
  """A transposed function, run where a pullback would.

  Args:
    function: of captured values and a cotangent.
    avals: the types of the results that this is a cotangent of.
    primals: the values, or descriptions, that it was transposed at.
  """
  types = placed(avals, primals)
  if not isinstance(types, _Placed):
    return function

  @functools.wraps(function)
  def run(*args, **kwargs):
    return _on_mesh(types, function, args, kwargs)
  return run


def _on_mesh(types: _Placed, function: Callable[..., Any],
             args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
  """Runs a function of a cotangent, the last argument, on the mesh it means.

  That is the mesh that the cotangent names, or the value, or what was kept, or
  the only one. What the cotangent has on no mesh is put there.

  Args:
    types: those of the cotangent.
    function: is called with the arguments.
    args: those by position.
    kwargs: those by keyword, as the cotangent may be.
  """
  if not _is_placeless(types.abstract) or not _is_eager():
    return function(*args, **kwargs)
  *_, last = [*args, *kwargs.values()]
  cotangent, tree = tree_util.tree_flatten(last)
  mesh = (_named(cotangent, types.abstract) or types.mesh
          or _named(tree_util.tree_leaves(args), types.abstract)
          or _only_one(types.abstract))
  if mesh is None:
    return function(*args, **kwargs)
  if len(cotangent) == len(types):
    last = tree_util.tree_unflatten(tree, [
        _put(x, aval, mesh) for x, aval in zip(cotangent, types)])
    if kwargs:
      kwargs = {**kwargs, [*kwargs][-1]: last}
    else:
      args = (*args[:-1], last)
  with _use_concrete(mesh):
    return function(*args, **kwargs)


def _put(x: Any, aval: Any, mesh: Any) -> Any:
  """A number or an uncommitted array, put where its type fits."""
  from jax._src import api, array  # pylint: disable=g-import-not-at-top
  fits = (isinstance(x, (bool, int, float, complex, np.generic, np.ndarray))
          or isinstance(x, array.ArrayImpl) and not x.committed)
  if (not fits or not isinstance(aval, core.ShapedArray)
      or aval.sharding.mesh != mesh.abstract_mesh
      or np.shape(x) != aval.shape or aval.dtype == dtypes.float0):
    return x
  sharding = NamedSharding(mesh, aval.sharding.spec)
  if not sharding.is_fully_addressable:
    return x  # putting it there would wait for the other processes
  return api.device_put(x, sharding)


def _meant(avals: Sequence[Any]) -> set[Any]:
  """The abstract meshes of types, with Explicit axes and several devices."""
  return {a.sharding.mesh for a in avals if isinstance(a, core.ShapedArray)
          and a.sharding.mesh._any_axis_explicit and a.sharding.mesh.size > 1}


def _named(values: Any, abstract: Any) -> Any:
  """The only concrete mesh of an abstract one in values' shardings, or None."""
  shardings = (getattr(x, 'sharding', None) for x in values
               if not isinstance(x, core.Tracer))
  meshes = {s.mesh for s in shardings if isinstance(s, NamedSharding)
            and isinstance(s.mesh, mesh_lib.Mesh)
            and s.mesh.abstract_mesh == abstract}
  return meshes.pop() if len(meshes) == 1 else None


@contextlib.contextmanager
def use_mesh_of_type(mesh: Any, values: Iterable[Any] = ()) -> Iterator[None]:
  """Enters a type's mesh; where values are made at once, with its devices.

  Args:
    mesh: an abstract one.
    values: arrays that may name the mesh with its devices.
  """
  concrete = None
  if _is_placeless(mesh) and _is_eager():
    concrete = _named(values, mesh) or _only_one(mesh)
  with mesh_lib.use_abstract_mesh(mesh):
    with contextlib.nullcontext() if concrete is None else _use_concrete(
        concrete):
      yield


def _is_placeless(mesh: Any) -> bool:
  """True if a type over this mesh doesn't place, and no context does."""
  if not mesh._any_axis_explicit or mesh.size == 1:
    return False
  context = mesh_lib.get_concrete_mesh()
  return context is None or context.empty  # None up to 0.6.0


def _use_concrete(mesh: Any) -> contextlib.AbstractContextManager:
  from jax._src import sharding_impls  # pylint: disable=g-import-not-at-top
  return sharding_impls._internal_use_concrete_mesh(mesh)


def _is_eager() -> bool:
  """True if no trace stages what is done out, to be run later."""
  for trace in traces.enclosing(core.trace_ctx.trace):
    if isinstance(trace, core.EvalTrace):
      return True
    if hasattr(trace, 'frame'):
      return False
  return False


def _only_one(abstract: Any) -> Any:
  """The one mesh of that type, or None if there is none or another."""
  strong = releases.kept_meshes()
  every = known.meshes() if strong is None else list(strong.values())
  found = [m for m in every if m.abstract_mesh == abstract]
  return found[0] if len(found) == 1 else None


def _places(sharding: Any) -> bool:
  """True if a constraint says on which devices: a type's mesh does not."""
  return not (isinstance(sharding, UnspecifiedValue) or
              isinstance(sharding, NamedSharding) and
              isinstance(sharding.mesh, mesh_lib.AbstractMesh))
