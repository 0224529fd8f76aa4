# SPDX-License-Identifier: Apache-2.0
"""Notes on how a jaxpr was traced, which its equations don't tell.

That a function differentiates something isn't seen in its jaxpr if what it
differentiates is linear: the gradient of ``p + s`` by ``p`` is a number, and
neither the sum nor ``s`` is left. If ``s`` comes to vary, that gradient is to
be summed over devices all the same. So each backward pass leaves a note with
the traces that it runs in, which goes on with their jaxprs.

A note stands in a jaxpr's debug information, as that is what every copy keeps,
in the place of ``traced_for``, whose text it equals.

Cost: a backward pass notes each trace around it, and a jaxpr that has a note is
copied, equations aside. Nothing outside of shard_map.
"""
from __future__ import annotations

from typing import Any
import weakref

from jax._src import core
from jax._src.mend import jaxprs
from jax._src.mend import traces
from jax._src.varying import context
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


class Note(str):
  """A jaxpr's ``traced_for``, with what was seen while it was traced.

  Attributes:
    differentiates: whether a backward pass ran meanwhile.
    takes_gradient: whether one ran whose result is used: not the transpose that
      a linear solve has ready.
    grown: if it would be traced otherwise by now, as a ref came to vary: of
      each input, those captured first, what it came to vary over.
  """
  differentiates: bool = False
  takes_gradient: bool = False
  grown: tuple[Axes, ...] = ()


traced_for = jaxprs.traced_for


def with_note(jaxpr: core.Jaxpr, /, **seen: Any) -> core.Jaxpr:
  """The jaxpr with a note of these attributes, besides those that it has."""
  info = jaxpr.debug_info
  note = Note(info.traced_for)
  note.__dict__.update({**getattr(info.traced_for, '__dict__', {}), **seen})
  return jaxpr.replace(debug_info=info._replace(traced_for=note))


def note_of(jaxpr: core.Jaxpr) -> Note | None:
  """The jaxpr's note, if it has one."""
  note = traced_for(jaxpr)
  return note if type(note) is Note else None


# By an eager trace, an error: nothing may be differentiated in it by now.
_refusals: Any = weakref.WeakKeyDictionary()


def in_doubt(trace: core.Trace, error: Exception) -> None:
  """Notes that JAX would type what an eager trace executes otherwise.

  Args:
    trace: the trace.
    error: what is to be raised if something is differentiated in it.

  Raises:
    Exception: that error, if something was already.
  """
  if trace in _taking_gradients:
    raise error
  _refusals[trace] = error


# The traces that haven't ended, in which a backward pass ran.
_differentiating: Any = weakref.WeakSet()
_any = _differentiating.data  # to see quickly that there is none
_taking_gradients: Any = weakref.WeakSet()  # those of them whose result is used


def note_differentiation(trace: core.Trace | None = None,
                         takes_gradient: bool = True) -> None:
  """Notes a running backward pass in the traces under way.

  Args:
    trace: the innermost of them; by default the current one.
    takes_gradient: whether its result is used.
  """
  if vt.checking():
    for around in traces.enclosing(trace or core.trace_ctx.trace):
      staged = hasattr(around, 'frame')
      if staged:
        _differentiating.add(around)
      if takes_gradient and not context.running.now.judged_later:
        _taking_gradients.add(around)
        if not staged and around in _refusals:
          raise _refusals[around]


def inherit(jaxpr: core.Jaxpr, trace: core.Trace | None = None) -> None:
  """Has a trace take over the note of what is copied into it."""
  note = note_of(jaxpr)
  if note is not None and note.differentiates:
    note_differentiation(trace, note.takes_gradient)


def with_note_of_trace(trace: core.Trace, traced: tuple) -> tuple:
  """A trace's jaxpr, which is the first of ``traced``, with its note."""
  if _any and trace in _differentiating:
    _differentiating.discard(trace)
    jaxpr, *others = traced
    takes = trace in _taking_gradients
    return with_note(
        jaxpr, differentiates=True, takes_gradient=takes), *others
  return traced
