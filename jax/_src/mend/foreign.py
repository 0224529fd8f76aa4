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
"""Telling the primitives that other libraries define."""
from __future__ import annotations

from collections.abc import Callable
import functools


def is_foreign(rule: Callable) -> bool:
  """True if another package than ``jax`` defined a primitive's rule."""
  while isinstance(rule, functools.partial):
    rule = rule.func
  module = getattr(rule, '__module__', None) or ''
  return module != 'jax' and not module.startswith('jax.')
