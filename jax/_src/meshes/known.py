# SPDX-License-Identifier: Apache-2.0
"""The meshes of this process, as long as anything holds them.

A type has the axes of a mesh, no devices, and ``Mesh`` remembers what it made
where nobody else can ask, from 0.10 on. It imports this module, so this one
imports none of JAX's.
"""
from __future__ import annotations

import threading
from typing import Any
import weakref

_known: weakref.WeakSet = weakref.WeakSet()
_lock = threading.Lock()


def noted(mesh: Any) -> Any:
  """Remembers a mesh, and returns it."""
  with _lock:
    _known.add(mesh)
  return mesh


def meshes() -> list[Any]:
  """All that were made and are still held."""
  with _lock:
    return list(_known)
