# SPDX-License-Identifier: Apache-2.0
"""Types of ``lax.psum_scatter`` and ``all_gather`` over Explicit axes.

In a shard_map over some axes of a mesh, types have shardings over the others if
those are Explicit. A sum that is scattered along a dimension, untiled, has one
dimension less, and so has its sharding; what is gathered has one more; and the
scalars that are added have none. JAX keeps the operand's sharding, which says
another dimension then, or has another rank, and refuses its own type. With it
go the gradients: each of the two is the other's transpose.
"""
from __future__ import annotations

from jax._src import core


def scattered(operand: core.ShapedArray, dimension: int, tiled: bool):
  """The sharding of a sum's part.

  Args:
    operand: the type of the operand.
    dimension: the one that the sum is scattered along.
    tiled: whether the result keeps that dimension.

  Returns:
    The sharding of its type.
  """
  parts = _parts(operand)
  if tiled or not parts:
    return operand.sharding
  del parts[dimension]
  return _with_parts(operand, parts)


def gathered(operand: core.ShapedArray, dimension: int, tiled: bool):
  """The sharding of what is gathered; arguments as in `scattered`."""
  parts = _parts(operand)
  if tiled or not parts:
    return operand.sharding
  parts.insert(dimension, None)
  return _with_parts(operand, parts)


def _parts(operand: core.ShapedArray) -> list:
  """Over which axes each dimension is, if any axis is Explicit."""
  s = operand.sharding
  return list(s.spec._partitions) if s.mesh.explicit_axes else []


def _with_parts(operand: core.ShapedArray, parts: list):
  s = operand.sharding
  return s.update(spec=s.spec.update(partitions=tuple(parts)))


def scalar(operand: core.ShapedArray) -> core.ShapedArray:
  """The type of one element, in the mesh of none."""
  return core.ShapedArray((), operand.dtype)
