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
