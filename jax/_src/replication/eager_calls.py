# SPDX-License-Identifier: Apache-2.0
"""Eager evaluation, inside shard_map, of calls that differentiation makes.

Reverse-mode differentiation of ``jax.checkpoint`` wraps what it stages in a
``closed_call``. Applied eagerly, shard_map evaluates each operation on all
devices at once, and before 0.7 had no way to do so with a call (jax#27664 in
its eager form: the gradient of a checkpointed loop). There is nothing to a call
but the function that it calls, so that is evaluated instead.
"""
from __future__ import annotations

from jax._src import core


def call_eagerly(trace: core.Trace, called, args):
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
