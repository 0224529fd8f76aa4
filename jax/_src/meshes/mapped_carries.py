# SPDX-License-Identifier: Apache-2.0
"""Loops, branches and calls that batching makes a value mapped in (jax#29637).

``vmap`` over a dimension that lies on an Explicit axis puts that axis in the
type of each value that is mapped. A carry that begins as a number, or as zeros
made without a mesh in the context, has a type over no mesh. When the loop's
body makes it mapped, its type is to name an axis of the mesh that it hasn't
got, which is refused.

What becomes mapped is mapped like the operand that it is computed from. So the
rule of a loop, branch, call or linear solve is given the batch's axis together
with the mesh of its mapped operands, by which a type over no mesh becomes one
over that mesh.

The branches of a conditional whose index is mapped are selected from, example
by example. A derivative's operands and results there may be whole on each
device along the batch, such as the zeros of a branch that has none of another's
residuals: they are laid out as the index is.

Without ``jit`` an array's placement is its type. There, too, an initial value
or operand over no mesh is broadcast to the mesh of the operands.

Cost: a look at the operands' types for each loop or branch that is batched over
an Explicit axis; nothing over any other.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

from jax._src import core
from jax._src.interpreters import batching
from jax._src.mend import traces
from jax._src.meshes import inferred_mesh
from jax._src.partition_spec import PartitionSpec as P
import numpy as np


@dataclasses.dataclass(frozen=True)
class AxisOverMesh(batching.AxisData):
  """The axis of a batch over an Explicit axis, with this axis' mesh.

  Attributes:
    mesh: the abstract mesh of the operands that are mapped.
  """
  mesh: Any


def of_operands(axis_data: batching.AxisData, args: Sequence[Any],
                dims: Sequence[Any]) -> batching.AxisData:
  """The axis of a batch with the mesh of the operands that are mapped.

  Args:
    axis_data: the batch's axis.
    args: the operands of an operation.
    dims: the dimension of each that is mapped, or None.

  Returns:
    `axis_data`, with a mesh if it lies on an Explicit axis of one.
  """
  if axis_data.explicit_mesh_axis is None:
    return axis_data
  for x, dim in zip(args, dims):
    mesh = None if dim is None else _mesh_of(traces.typeof(x))
    if mesh is not None:
      return AxisOverMesh(mesh=mesh, **{
          f.name: getattr(axis_data, f.name)
          for f in dataclasses.fields(batching.AxisData)})
  return axis_data


def over_mesh(rule: Callable[..., Any]) -> Callable[..., Any]:
  """Gives a batching rule the mesh of the operands that are mapped.

  Args:
    rule: a rule of an axis, operands and the dimensions that are mapped.
  """
  @functools.wraps(rule)
  def with_mesh(axis_data, args, dims, /, **params):
    return rule(of_operands(axis_data, args, dims), args, dims, **params)
  return with_mesh


def unmapped_aval(axis_data: batching.AxisData) -> Callable[..., Any]:
  """``core.unmapped_aval``, by which a type over no mesh gets the batch's.

  Args:
    axis_data: the batch's axis.
  """
  if not isinstance(axis_data, AxisOverMesh):
    return core.unmapped_aval

  def unmapped(size, axis, aval, explicit_mesh_axis):
    return core.unmapped_aval(size, axis, _placed(aval, axis_data.mesh),
                              explicit_mesh_axis)
  return unmapped


def sharding_for_vmap(of_batch: Callable[..., Any]) -> Callable[..., Any]:
  """A batch's sharding by an element's, also by one over no mesh.

  Args:
    of_batch: ``batching.get_sharding_for_vmap``, which refuses that. It is
      over the batch's mesh then, or left open if that isn't known.
  """
  @functools.wraps(of_batch)
  def sharding(axis_data, orig, axis):
    if axis_data.explicit_mesh_axis is None or not orig.mesh.empty:
      return of_batch(axis_data, orig, axis)
    if not isinstance(axis_data, AxisOverMesh):
      return None
    whole = P(*[None] * len(orig.spec))
    return of_batch(axis_data, type(orig)(axis_data.mesh, whole), axis)
  return sharding


def broadcast(axis_data: batching.AxisData, args: Sequence[Any]
              ) -> Callable[..., Any]:
  """``batching.broadcast``, by which a value over no mesh gets the batch's.

  Args:
    axis_data: the batch's axis.
    args: the operands, some of them mapped. Without ``jit``, they say on which
      devices the mesh is.
  """
  def broadcast(x, size, axis, mesh_axis):
    if (not isinstance(axis_data, AxisOverMesh)
        or _mesh_of(traces.typeof(x)) is not None):
      return batching.broadcast(x, size, axis, mesh_axis)
    return _broadcast(x, size, axis, axis_data, args)
  return broadcast


def at_front(axis_data: batching.AxisData, args: Sequence[Any]
             ) -> Callable[..., Any]:
  """``batching.bdim_at_front``, which broadcasts as above.

  Args:
    axis_data: the batch's axis.
    args: the operands, some of them mapped.
  """
  def front(x, dim, size, /, **_):
    if dim is None:
      return broadcast(axis_data, args)(
          x, size, 0, axis_data.explicit_mesh_axis)
    return batching.moveaxis(x, dim, 0)
  return front


def selecting(select: Callable[..., Any]) -> Callable[..., Any]:
  """Lays out what is selected from along the batch as the index is.

  Args:
    select: a function of a mapped index and of cases, all with the batch's
      dimension in front.
  """
  @functools.wraps(select)
  def select_laid_out(index, /, *cases):
    aval = traces.typeof(index)
    mesh = _mesh_of(aval)
    if mesh is None or not aval.ndim or aval.sharding.spec[0] is None:
      return select(index, *cases)
    return select(index, *(_along(x, aval.sharding.spec[0]) for x in cases))
  return select_laid_out


def _along(x: Any, axis: Any) -> Any:
  """A value that is whole along its first dimension, laid out over an axis."""
  from jax._src import pjit  # imports this
  aval = traces.typeof(x)
  if _mesh_of(aval) is None or not aval.ndim or (
      aval.sharding.spec[0] is not None):
    return x
  return pjit.reshard(x, aval.sharding.update(
      spec=P(axis, *aval.sharding.spec[1:])))


def _broadcast(x: Any, size: int, axis: int, axis_data: AxisOverMesh,
               args: Sequence[Any]) -> Any:
  from jax._src.lax import lax  # imports this
  from jax._src.named_sharding import NamedSharding
  shape, spec = list(np.shape(x)), [None] * np.ndim(x)
  shape.insert(axis, size)
  spec.insert(axis, axis_data.explicit_mesh_axis)
  old = [n for n in range(len(shape)) if n != axis]
  with inferred_mesh.use_mesh_of_type(axis_data.mesh, map(_array_of, args)):
    return lax.broadcast_in_dim(
        x, shape, old, out_sharding=NamedSharding(axis_data.mesh, P(*spec)))


def _array_of(x: Any) -> Any:
  """The array within the tracers of transformations that execute at once."""
  while isinstance(x, core.Tracer):
    x = traces.held(x)
  return x


def _placed(aval: Any, mesh: Any) -> Any:
  """A type over this mesh, whole on each device, if it was over none."""
  sharding = getattr(aval, 'sharding', None)
  if sharding is None or not sharding.mesh.empty:
    return aval
  return aval.update(sharding=type(sharding)(mesh, P(*[None] * aval.ndim)))


def _mesh_of(aval: Any) -> Any:
  """The mesh of a type that is over one, else None."""
  sharding = getattr(aval, 'sharding', None)
  return None if sharding is None or sharding.mesh.empty else sharding.mesh
