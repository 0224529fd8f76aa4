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
"""Opening jaxprs, and changing those that a parameter holds."""
from __future__ import annotations

from collections.abc import Callable
import operator
from typing import Any

from jax._src import core
from jax._src.mend import releases

CLASSES = releases.jaxpr_classes()


def open_jaxpr(jaxpr) -> core.Jaxpr:
  """The jaxpr itself, of a closed or an open one."""
  return jaxpr if isinstance(jaxpr, core.Jaxpr) else jaxpr.jaxpr


def reclose(like, jaxpr: core.Jaxpr):
  """Closes ``jaxpr`` over the constants of ``like`` if ``like`` is closed."""
  inner = open_jaxpr(like)
  if inner is jaxpr:
    return like
  return jaxpr if inner is like else like.replace(jaxpr=jaxpr)


def map_jaxprs(f: Callable[[core.Jaxpr], core.Jaxpr], value: Any) -> Any:
  """A parameter with ``f`` of each jaxpr in it; itself if ``f`` changes none.

  Traced functions and the operations that hold them stay as they are.
  """
  kind = type(value)
  if kind in CLASSES:
    return reclose(value, f(open_jaxpr(value)))
  if isinstance(value, (tuple, list)):
    new = [map_jaxprs(f, x) for x in value]
    if all(map(operator.is_, new, value)):
      return value
    return kind(*new) if hasattr(value, '_fields') else kind(new)
  if isinstance(value, dict):
    new = [map_jaxprs(f, x) for x in value.values()]
    if all(map(operator.is_, new, value.values())):
      return value
    return kind(zip(value, new))
  return value
