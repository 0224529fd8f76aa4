# SPDX-License-Identifier: Apache-2.0
"""Types of products of an array over Explicit axes and one of no mesh.

A constant has no mesh, nor has what ``jax.grad`` computes of one, while a
cotangent has that of the context. Other operations take both together; up to
0.6.2 ``lax.dot_general`` refuses them, and with it the gradient of a product.
What has no mesh is whole on each device: its spec names no axis.

Limits: two operands of different meshes are refused as before.

Cost: a look at two types.
"""
from __future__ import annotations

from jax._src import core
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec


def of_one_mesh(lhs: core.ShapedArray, rhs: core.ShapedArray) -> tuple:
  """The types of a product's operands, both of the mesh that one of them has.

  Args:
    lhs: the type of one.
    rhs: that of the other.
  """
  return _on_mesh_of(lhs, rhs), _on_mesh_of(rhs, lhs)


def _on_mesh_of(aval: core.ShapedArray,
                other: core.ShapedArray) -> core.ShapedArray:
  if not aval.sharding.mesh.empty or other.sharding.mesh.empty:
    return aval
  whole = PartitionSpec(*[None] * aval.ndim)
  return aval.update(sharding=NamedSharding(other.sharding.mesh, whole))
