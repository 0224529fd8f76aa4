# SPDX-License-Identifier: Apache-2.0
"""The types of what vmap(..., spmd_axis_name=) maps, within a shard_map.

There a value that is mapped varies over the axes that the batch names. One that
isn't is cast where it meets one that is, as upstream does for most primitives.
Here are those that it left out, and the types of jaxprs within a batch, which
captured values (``meshes.batched``) change (jax#17874, jax#23476).

Cost: nothing where no batch names an axis.
"""
from __future__ import annotations

from jax._src import core
from jax._src.mend import traces
from jax._src import mesh as mesh_lib
from jax._src.interpreters import batching
from jax._src.varying import types as vt


def cast_to_batch_axes(args) -> list:
  """Casts operands of one primitive to vary over the axes that a batch names.

  Args:
    args: the operands, under all of the batches whose rule is at work.

  Returns:
    The operands. A batch within another that names an axis leaves that axis to
    the other: types don't show it there.
  """
  names = frozenset(core.trace_ctx.axis_env.spmd_axis_names)
  for trace in traces.enclosing(core.trace_ctx.trace) if names else ():
    if isinstance(trace, batching.BatchTrace) and trace.axis_data.spmd_name:
      names -= frozenset(trace.axis_data.spmd_name)
  if not names or not vt.promoting():
    return args
  return [vt.cast(x, names) if isinstance(vt.typeof(x), core.ShapedArray) else x
          for x in args]


def cast_if_captured(x):
  """A value that is broadcast, of a type of inside the shard_map.

  What is captured has the mesh of outside, in which it would be broadcast.
  """
  aval = vt.typeof(x)
  names = frozenset(core.trace_ctx.axis_env.spmd_axis_names)
  if (isinstance(aval, core.ShapedArray) and
      names & frozenset(mesh_lib.get_abstract_mesh().manual_axes)
      - frozenset(aval.sharding.mesh.manual_axes)):
    x, = cast_to_batch_axes([x])
  return x


def sum_cotangents(axis_data, cts, dims) -> list:
  """Sums cotangents of what isn't mapped over the axes that a batch names.

  Args:
    axis_data: the batch.
    cts: what a custom rule gave, summed over this device's part of the batch.
    dims: which of the operands are mapped.

  Returns:
    The cotangents.
  """
  from jax._src.lax import parallel  # it imports batching
  names = frozenset(axis_data.spmd_name or ())
  def total(ct, dim):
    axes = () if dim is not None else tuple(
        sorted(names & vt.varying(vt.typeof(ct))))
    return parallel.psum(ct, axes) if axes else ct
  return [total(ct, dim) if names and isinstance(ct, core.Tracer) else ct
          for ct, dim in zip(cts, dims)]


def inner_types(avals, axis_data, dims=None) -> list:
  """The types of a jaxpr's operands within a batch.

  A mapped one varies over the axes that the batch names. A captured value's
  type has the mesh that it was made under, where no axis is manual yet.

  Args:
    avals: the types, those of mapped operands with the batch's dimension.
    axis_data: the batch.
    dims: which operands are mapped; None if all of them are.

  Returns:
    The types.
  """
  if axis_data.spmd_name is None or not vt.promoting():
    return avals
  return [aval if dims is not None and dims[n] is None
          else _varying_along(aval, axis_data.spmd_name)
          for n, aval in enumerate(avals)]


def _varying_along(aval, names):
  mesh = mesh_lib.get_abstract_mesh()
  if (not vt.CAN_BE_REDUCED and frozenset(names) <= frozenset(mesh.manual_axes)
      and not frozenset(names) <= frozenset(aval.sharding.mesh.manual_axes)):
    spec = aval.sharding.spec
    aval = aval.update(sharding=type(aval.sharding)(mesh, spec))
  return vt.with_varying(aval, vt.varying(aval).union(names))
