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
"""Errors about Python callbacks that can't be lowered."""

from __future__ import annotations


def several_platforms(message: str) -> Exception:
  """The error for a callback that is lowered for several platforms at once.

  Args:
    message: the base's.
  """
  return NotImplementedError(
      f'{message}: jax.debug.print, jax.debug.callback, jax.pure_callback and '
      'io_callback expected a program that is lowered for one platform, got '
      'one for several. Lower or export it once for each platform, or without '
      'the callback.')
