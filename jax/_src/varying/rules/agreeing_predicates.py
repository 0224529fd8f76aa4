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
"""Predicates that are the same on all devices, though their types vary.

A type can only say that a value varies: what ``all_gather`` returns does, and
what is cast does, although each device has the same. Where that is a predicate
no device parts, and upstream, which takes every predicate to be the same, is
right: what a branch or loop changes doesn't vary because of it, and collectives
inside meet.

So a predicate that varies is walked back, through functions of their operands
alone (:mod:`~.dependences`), to its *sources*: values whose types say it all,
and operands of gathers and reductions over devices, less the axes that these
name. It may differ along what a source varies over, less these axes. If that is
less than its type says, the primitive ``agreed`` gives it that type. It has the
sources as operands, and its type is always the union of theirs: where a jaxpr
is typed again and a source varies more, so does the predicate.

The walk goes through jitted functions, branches and loops, and out of a
function that is traced to the values that it captures. An eager ``shard_map``
traces nothing; there, what agrees is remembered of each value as it is
computed, loops excepted.

Limits: the walk ends at a jaxpr's inputs. A predicate that is gathered outside
and passed to a jitted function, or as ``xs`` of a scan, goes by its type there.
A scatter ends it, too, whose sums may come out in another order on another
device.

Cost: where a predicate varies and types don't fit as they are, one visit of
each operation that it is computed by. Compiled, ``agreed`` is its operand.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import functools
from typing import Any, NamedTuple
import weakref

from jax._src import core
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import traces
from jax._src.varying import contents
from jax._src.varying import flow
from jax._src.varying import types as vt
from jax._src.varying.rules import dependences
from jax._src.varying.types import Axes, NO_AXES

# Of a predicate and its sources; ``less``: the axes that don't count of each.
agreed_p = core.Primitive('agreed')
agreed_p.def_impl(lambda predicate, *sources, less: predicate)


def _axes(sources: Iterable[Axes], less: Iterable[Sequence]) -> Axes:
  return flow.union(a.difference(names) for a, names in zip(sources, less))


@agreed_p.def_abstract_eval
def _agreed_type(predicate, *sources, less):
  return vt.with_varying(predicate, _axes(map(vt.varying, sources), less))


def _agreed_batch(args, dims, *, less):
  return agreed_p.bind(*args, less=less), dims[0]


def agreed_rule(site: flow.Site, ins: list[Axes]) -> None:
  site.operands = ins
  site.outs = [_axes(ins[1:], site.eqn.params['less'])]


ad.defjvp_zero(agreed_p)
batching.primitive_batchers[agreed_p] = _agreed_batch
mlir.register_lowering(agreed_p, lambda ctx, predicate, *_, less: [predicate])
FLOW_RULES = {'agreed': agreed_rule}

class Source(NamedTuple):
  """A value that a predicate is a function of, less axes that don't count."""
  value: Any
  less: Axes


Sources = dict[int, Source]  # by the value's id


def _sources(value: Any, step: Callable[[Any], traces.Step | None],
             of_input: Callable[[Any], Sources]) -> Sources:
  """The sources of a value.

  Args:
    value: a variable or tracer.
    step: gives how one was made, if it was.
    of_input: gives what else it is a function of.
  """
  known: dict[int, Sources] = {}
  todo = [value]
  while todo:
    v = todo[-1]
    made = None
    if type(v) is core.Literal:
      known[id(v)] = {}
    elif not _varying(v):
      known[id(v)] = _itself(v)
    elif (made := step(v)) is None:
      known[id(v)] = of_input(v)
    else:
      found = dependences.of_result(made.eqn, made.n, len(made.operands))
      if found is None:
        known[id(v)] = _itself(v)
      else:
        missing = [o for k in found
                   if id(o := made.operands[k]) not in known]
        if missing:
          todo += missing
          continue
        known[id(v)] = _joined(
            (known[id(made.operands[k])], less) for k, less in found.items())
    todo.pop()
  return known[id(value)]


def _varying(v: Any) -> Axes:
  return vt.varying(vt.typeof(v) if isinstance(v, core.Tracer) else v.aval)


def _itself(v: Any) -> Sources:
  return {id(v): Source(v, NO_AXES)}


def _joined(parts: Iterable[tuple[Sources, Axes]]) -> Sources:
  joined: Sources = {}
  for sources, less in parts:
    for n, (v, axes) in sources.items():
      before = joined.get(n, Source(v, axes | less))
      joined[n] = Source(v, before.less & (axes | less))
  return joined


def _of_tracer(x: Any) -> Sources:
  """The sources of a tracer, as far as they are known."""
  *_, inner = traces.layers(x)
  if not isinstance(inner, pe.DynamicJaxprTracer):
    return {id(inner): Source(inner, _remembered(inner))}

  def of_input(v):
    """A value that is captured is typed outside, where it was made.

    Its sources stay there: nobody captures what can be differentiated.
    """
    captured = traces.captured(v)
    if captured is None:
      return _itself(v)
    *_, outer = traces.layers(captured)
    with core.set_current_trace(outer._trace):
      typed = agreed(outer)
    return _itself(v if typed is outer else typed)

  return _sources(inner, traces.steps_of(inner), of_input)


# By the id of a tracer of an eager shard_map, with a reference to it: the axes
# along which it is the same, of those that it varies over.
_same_along: dict[int, tuple[weakref.ref, Axes]] = {}


def _remembered(x: Any) -> Axes:
  reference, axes = _same_along.get(id(x), (None, NO_AXES))
  return axes if reference is not None and reference() is x else NO_AXES


class _Bound(NamedTuple):
  primitive: core.Primitive
  params: dict[str, Any]
  outvars: Sequence[Any]
  effects: Any


def remembering(process):
  """Has an eager ``shard_map``'s trace remember which results agree.

  Args:
    process: ``ShardMapTrace.process_primitive``.
  """
  @functools.wraps(process)
  def process_primitive(self, prim, tracers, params):
    result = process(self, prim, tracers, params)
    if vt.checking():
      outs = result if prim.multiple_results else [result]
      jaxprs = map(vt.open_jaxpr, contents.jaxprs_in(params))
      effects = flow.union(j.effects for j in jaxprs)
      _remember(_Bound(prim, params, outs, effects), tracers)
    return result
  return process_primitive


def _remember(eqn: _Bound, tracers: Sequence[Any]) -> None:
  if vt.name_of(eqn.primitive) in dependences.LOOPS:  # a walk for each carry
    return
  for n, out in enumerate(eqn.outvars):
    axes = vt.varying(vt.typeof(out))
    found = axes and dependences.of_result(eqn, n, len(tracers))
    if not found or not isinstance(out, core.Tracer):
      continue
    differs = flow.union(
        vt.varying(vt.typeof(tracers[k])) - _remembered(tracers[k]) - less
        for k, less in found.items())
    if axes - differs:
      key = id(out)
      reference = weakref.ref(out, lambda _, key=key: _same_along.pop(key, 0))
      _same_along[key] = reference, axes - differs


def _gained(axes: Axes, sources: Sources) -> bool:
  """True if a value of such sources parts fewer devices than its type says."""
  return bool(vt.parting(axes - flow.union(
      _varying(s.value) - s.less for s in sources.values())))


def _less(sources: Sources) -> tuple:
  return tuple(vt.ordered(s.less) for s in sources.values())


def agreed(predicate: Any) -> Any:
  """A value of a type that says along what it may differ.

  Args:
    predicate: a value in the current trace, such as a conditional's index.

  Returns:
    ``predicate``, or one that is typed as varying over fewer axes. It has no
    derivative.
  """
  if not isinstance(predicate, core.Tracer):
    return predicate
  axes = vt.varying(vt.typeof(predicate))
  if not vt.parting(axes):
    return predicate
  sources = _of_tracer(predicate)
  if not _gained(axes, sources):
    return predicate
  return agreed_p.bind(predicate, *(s.value for s in sources.values()),
                       less=_less(sources))


def agreed_loop(args: Sequence[Any], params: dict[str, Any],
                unchanged: dict[int, int]) -> tuple[Sequence[Any], dict]:
  """A while loop whose predicate's type says along what it may differ.

  Args:
    args: the operands of the loop.
    params: its parameters.
    unchanged: the operand that an input of the predicate is in every trip, by
      its number.

  Returns:
    Operands and parameters of the loop, with such a predicate.
  """
  closed, first = params['cond_jaxpr'], params['cond_nconsts']
  jaxpr = vt.open_jaxpr(closed)
  made = {v: traces.Step(eqn, eqn.invars, n) for eqn in jaxpr.eqns
          for n, v in enumerate(eqn.outvars)}
  place = {v: unchanged[n] for n, v in enumerate(jaxpr.invars)
           if n in unchanged}

  def of_input(v):
    operand = args[place[v]] if v in place else None
    typed = agreed(operand)
    return _itself(v if typed is operand else typed)

  out, = jaxpr.outvars
  sources = _sources(out, made.get, of_input)
  if not _gained(vt.varying(out.aval), sources):
    return args, params
  captured = [s.value for s in sources.values()
              if isinstance(s.value, core.Tracer)]
  inputs = {id(x): vt.new_var(vt.typeof(x)) for x in captured}
  inside = [inputs.get(n, s.value) for n, s in sources.items()]
  less = _less(sources)
  new = vt.new_var(_agreed_type(
      out.aval, *(v.aval for v in inside), less=less))
  eqn = core.new_jaxpr_eqn([out, *inside], [new], agreed_p, dict(less=less),
                           core.no_effects, jaxpr.eqns[-1].source_info)
  invars = [*jaxpr.invars[:first], *inputs.values(), *jaxpr.invars[first:]]
  jaxpr = jaxpr.replace(invars=invars, outvars=[new], eqns=[*jaxpr.eqns, eqn])
  return ([*args[:first], *captured, *args[first:]],
          {**params, 'cond_jaxpr': vt.reclose(closed, jaxpr),
           'cond_nconsts': first + len(captured)})
