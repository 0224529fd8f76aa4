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
"""Eager evaluation, inside shard_map, of calls that differentiation makes.

Reverse-mode differentiation of ``jax.checkpoint`` wraps what it stages in a
``closed_call``. Applied eagerly, shard_map evaluates each operation on all
devices at once, and before 0.7 had no way to do so with a call (jax#27664 in
its eager form: the gradient of a checkpointed loop). There is nothing to a call
but the function that it calls, so that is evaluated instead.
"""
from __future__ import annotations

from jax._src import core


def evaluate(trace: core.Trace, called, args):
  """Evaluates a called function, operation by operation.

  Args:
    trace: the trace of the eager shard_map.
    called: the function, wrapped as transformations wrap it.
    args: its arguments, as the trace holds them.

  Returns:
    Its results, flat.
  """
  with core.set_current_trace(trace):
    results = called.call_wrapped(*args)
  return results
