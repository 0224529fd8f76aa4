# SPDX-License-Identifier: Apache-2.0
"""Transfers of an array between the memories of its own device.

``device_put`` to a ``Device`` hands on what is on that device already, in
whatever memory it is. In host memory it isn't what the result's type says.

Cost: two memory kinds are compared where an array is on the device already.
"""
from __future__ import annotations

from typing import Any


def is_in_memory(x: Any, sharding: Any, device: Any) -> bool:
  """True of an array in the requested memory.

  Args:
    x: the array.
    sharding: where it is put; one without a memory means the device's own.
    device: the device there.
  """
  held, wanted = x.sharding.memory_kind, sharding.memory_kind
  if held == wanted or held is None:
    return True
  return wanted is None and held == device.default_memory().kind
