# SPDX-License-Identifier: Apache-2.0
"""Values of traces that have ended, in functions that are lowered (jax#35799).

A function that closes over a tracer of an enclosing trace is lowered with a
parameter more, for the value that the enclosing program will have. Once that
trace has ended there is none. A call says so; `lower` and `jax.export` went
on, and what they made could only fail when it was called, for want of an
argument that nobody had written.

JAX marks the end of a trace that linearizes, but not of one that writes a
jaxpr, on purpose: there are leaks that do no harm. So those that have ended are
marked, and the mark is looked up where a function is lowered. `trace`,
`eval_shape` and `make_jaxpr` still accept such a function: what they tell is
right.

Limits: the end of a trace by an exception isn't marked, and a value of
`jax.jvp` or `jax.vmap` alone is never known to be dead.

Cost: a dictionary of another type in each trace that ends, and a look at the
values that a function closes over when it is lowered.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import core


class OfEnded(dict):
  """The constants of a trace that has written its jaxpr: none any more."""


def check(captured: Sequence[Any]) -> None:
  """Refuses to lower a function that closes over a dead tracer.

  Args:
    captured: the values that the traced function takes of enclosing traces.

  Raises:
    jax.errors.UnexpectedTracerError: the trace of one of them has ended.
  """
  for x in captured:
    if isinstance(x, core.Tracer) and (
        _has_ended(x._trace) or not x._trace.is_valid()):
      raise core.escaped_tracer_error(x)


def _has_ended(trace: core.Trace) -> bool:
  frame = getattr(trace, 'frame', None)
  return type(getattr(frame, 'constid_to_tracer', None)) is OfEnded
