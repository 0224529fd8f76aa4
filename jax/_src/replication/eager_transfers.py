# SPDX-License-Identifier: Apache-2.0
"""``jax.device_put`` in an eager shard_map, and what its transpose names.

The transpose of ``device_put`` puts the cotangent back where the operand was.
Eagerly, a value that is the same on all devices is an array replicated over the
mesh, so a gradient inside asks for a transfer to that sharding, as if the user
had named devices, which shard_map refuses. The cotangent is where it belongs.

A transfer to any other sharding, or to a device, is refused as before.
"""
from __future__ import annotations

from collections.abc import Callable

from jax._src import sharding_impls


def staying(rule: Callable) -> Callable:
  """Lets an eager rule for ``device_put`` take replication for no transfer.

  Args:
    rule: a function of the mesh and the operands; ``devices`` among its
      parameters are None or where the user wants each operand.

  Returns:
    A function of the same.
  """
  def stay(mesh, /, *operands, devices, **params):
    devices = [None if _is_replicated_over(mesh, d) else d for d in devices]
    return rule(mesh, *operands, devices=devices, **params)
  return stay


def _is_replicated_over(mesh, device) -> bool:
  return (isinstance(device, sharding_impls.NamedSharding)
          and device.mesh == mesh and device.is_fully_replicated)
