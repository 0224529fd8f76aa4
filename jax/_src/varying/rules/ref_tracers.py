# SPDX-License-Identifier: Apache-2.0
"""Refs while a program is traced: one that must vary over more axes widens.

* If the ref was made by an equation of the jaxpr being traced, it is replaced:
  its content is read, cast, and put in a new ref, which takes the place of the
  old one in the tracer that the user holds. What was read before keeps its
  type, which is that of the value that was there. Nothing is left of this in
  the compiled program, where refs are values.
* If it comes from outside, as an operand or a captured value of a loop, branch,
  jit or remat, the tracer's type is raised, the jaxpr is re-typed once it is
  complete, and the ref outside is widened when the equation is bound.
* If it enters ``shard_map`` itself, or another function whose types are fixed
  before it is traced, the write is refused.

What is only read is left alone, and a copy is read that was cast (``refs``).

Cost: one pass over the equations traced so far for each replacement.
"""
from __future__ import annotations

from jax._src import core
from jax._src.mend import traces
from jax._src import source_info_util
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import pages
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.types import Axes

# Functions that are traced for these are re-typed when they are bound.
_RETYPED_WHEN_BOUND = frozenset([
    'jit', 'pjit', 'scan', 'fori_loop', 'while_cond', 'while_body', 'cond',
    'switch', 'checkpoint', 'remat', 'checkpoint / remat'])


def widen(ref, axes: Axes):
  """Makes the content of a ref vary along ``axes`` too.

  What is replaced is the innermost jaxpr's own ref, which all who hold the ref
  share; the tracers of transformations around it only have their types set.

  Args:
    ref: the ref, as the program or a trace holds it. Its tracers change in
      place.
    axes: what its content must vary over.

  Returns:
    The ref, as the current trace has to be given it.

  Raises:
    TypeError: if the ref's type is fixed, or promotion is refused.
  """
  base, parts = _shared(ref)
  if base is None:
    raise TypeError(_refusal(ref.aval, axes, None))
  if axes - vt.varying(base.aval):
    purpose = getattr(base._trace.frame.debug_info, 'traced_for', None)
    local = base.parent is not None and base.parent.primitive is core.ref_p
    if not vt.promoting() or not local and purpose not in _RETYPED_WHEN_BOUND:
      raise TypeError(_refusal(ref.aval, axes, purpose))
    if local:
      with core.set_current_trace(base._trace):
        _replace(base, axes)
    else:
      retype.raised_refs[base._trace] = True
      traces.set_type(base, vt.with_varying(
          base.aval, vt.varying(base.aval) | axes))
  for part in parts:
    tangent = getattr(part, 'tangent', None)
    if isinstance(tangent, core.Tracer):
      trace = part._trace
      with core.set_current_trace(
          getattr(trace, 'tangent_trace', trace.parent_trace)):
        part.tangent = widen(tangent, axes)
    traces.set_type(part, vt.with_varying(
        part.aval, vt.varying(part.aval) | axes))
  return parts[0] if parts else base


def _shared(ref):
  """The innermost jaxpr's tracer of a ref, and the tracers that wrap it.

  Tracers of transformations inside the current trace's jaxpr can hold a ref
  that is another jaxpr's yet; they are given this one's.

  Args:
    ref: the ref.

  Returns:
    The tracer, None if nothing is being traced to a jaxpr, and a list of the
    others, from the outermost on.
  """
  x, parts, base_trace = ref, [], None
  for trace in traces.enclosing(core.trace_ctx.trace):
    if isinstance(trace, pe.DynamicJaxprTrace):
      base_trace = trace
      break
    if isinstance(x, core.Tracer) and _of(x, trace):
      parts.append(x)
      x = traces.held(x)
  if base_trace is None or not isinstance(x, core.Tracer):
    return None, parts
  base = base_trace.to_jaxpr_tracer(x, source_info_util.current())
  if parts and base is not x:
    setattr(parts[-1], 'primal' if hasattr(parts[-1], 'primal') else 'val',
            base)
  return base, parts


def _of(x, trace) -> bool:
  """True if a tracer belongs to a trace, or to the same transformation."""
  return x._trace is trace or getattr(x._trace, 'tag', x) is getattr(
      trace, 'tag', None)


def _replace(ref, axes: Axes) -> None:
  """Puts a new ref, with the content cast, in a jaxpr's tracer of a ref."""
  # The equations so far are about the old ref.
  old = pe.DynamicJaxprTracer(ref._trace, ref.aval, ref.val, ref._line_info,
                              ref.parent)
  for eqn in ref._trace.frame.tracing_eqns:
    eqn = eqn if hasattr(eqn, 'in_tracers') else eqn()
    if eqn is not None and any(t is ref for t in eqn.in_tracers):
      eqn.in_tracers = [old if t is ref else t for t in eqn.in_tracers]
  new = _wide_copy(old, axes, ref.parent.params)
  traces.set_type(ref, new.aval)
  ref.val, ref.parent = new.val, new.parent


def _wide_copy(ref, axes: Axes, params=None):
  """A new ref that holds the content of another, cast to ``axes`` as well."""
  x = ref
  for prim, own in vt.copy_ref_steps(ref.aval):
    if prim is core.pvary_p:
      x = vt.cast(x, axes | vt.varying(ref.aval))
    else:
      x = prim.bind(x, **(params or own if prim is core.ref_p else own))
  return x


def _refusal(aval, axes: Axes, purpose) -> str:
  here = source_info_util.summarize(source_info_util.current())
  message = (f'{here}: a value that varies over {vt.ordered(axes)} is written '
             f'to a ref of type {aval.str_short()}, which varies over '
             f'{vt.ordered(vt.varying(aval))}')
  if purpose == 'shard_map':
    return (f'{message}, and was made outside of shard_map: its in_spec says '
            'that its content is the same on all devices along '
            f'{vt.ordered(axes - vt.varying(aval))}. Name those axes in the '
            "ref's in_spec, reduce the value over them (jax.lax.psum, "
            'jax.lax.pmax), or make the ref inside.' +
            pages.see('varying_errors.md#writes-to-refs'))
  return (f'{message}.\nMake the ref from a value that varies over those axes: '
          f'new_ref(jax.lax.pcast(x, {vt.ordered(axes - vt.varying(aval))}, '
          "to='varying'))." +
          pages.see('varying_errors.md#writes-to-refs'))


def in_current_trace(ref):
  """A ref, as the current trace holds it."""
  trace = core.trace_ctx.trace
  if not isinstance(trace, pe.DynamicJaxprTrace):
    return ref
  return trace.to_jaxpr_tracer(ref, source_info_util.current())


def widened_or_copied(ref, axes: Axes, written: bool):
  """A ref that must vary over more axes, widened or copied.

  Args:
    ref: the operand of an equation.
    axes: what it must vary over.
    written: whether the equation writes to it.

  Returns:
    What to bind in its place.
  """
  if written:
    return widen(ref, axes)
  trace = core.trace_ctx.trace
  if isinstance(ref, core.Tracer) and _of(ref, trace):
    return _wide_copy(ref, axes)
  base, parts = _shared(ref)
  if base is None or parts:
    return ref  # what transforms the current trace binds it again
  with core.set_current_trace(base._trace):
    return _wide_copy(base, axes)


def promote(ref: core.Tracer, axes: Axes) -> None:
  """Widens a ref where it was made or captured, and in the current trace."""
  with core.set_current_trace(ref._trace):
    widen(ref, axes)
  widen(in_current_trace(ref), axes)
