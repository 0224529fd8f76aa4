# SPDX-License-Identifier: Apache-2.0
"""Evaluates the body of a shard_map, with comparisons between devices.

The jaxpr's equations are bound again one by one, in a shard_map with the check
off: nothing is differentiated any more, and the comparisons are free to be the
same or not along any axis. What the check needs beside the values, casts and
reductions of a kind of their own, becomes what it is at run time: nothing, or a
plain reduction. Types are read from the jaxpr.

Calls, checkpoints and custom rules are evaluated in place, and so is what an
operation that knows its own types (hijax) consists of. Loops and branches
are made again by their public functions, over their evaluated bodies. A
predicate that should be the same on all devices is made so, by its least, after
it has been compared: neither a collective of the program's nor one of ours is
ever reached by some of its devices only. So are predicates of which only the
program knows that they are the same: something in a branch or loop communicates
over axes along which its predicate may differ, by its type.

A value is not compared if all that it is made of is, and the operation works on
single elements, or moves them: equal bits give equal bits there, and the first
difference can't be its own. Sums, products of matrices, random bits and all
else are compared.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import functools
from typing import Any

import jax
from jax import lax
from jax._src import api_util
from jax._src import core
from jax._src import linear_util as lu
from jax._src.interpreters import partial_eval as pe
from jax._src.lax import parallel
from jax._src.mend import abstract
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import manual_axes
from jax._src.mend import manual_maps
from jax._src.mend import releases
from jax._src.partition_spec import PartitionSpec
from jax._src.sanitizer import axes as axes_lib
from jax._src.sanitizer import digests
from jax._src.sanitizer import sites as sites_lib
from jax._src.sanitizer.comparing import Comparer, Known
from jax._src import source_info_util
import jax.numpy as jnp

Results = tuple[list[Any], list[Known]]
# Operations on single elements, or that move them.
_ELEMENTWISE = {
    'abs', 'acos', 'acosh', 'add', 'add_any', 'and', 'asin', 'asinh', 'atan',
    'atan2', 'atanh', 'bessel_i0e', 'bessel_i1e', 'bitcast_convert_type',
    'broadcast_in_dim', 'cbrt', 'ceil', 'clamp', 'clz', 'complex',
    'concatenate', 'conj', 'convert_element_type', 'copy', 'cos', 'cosh',
    'digamma', 'div', 'eq', 'eq_to', 'erf', 'erf_inv', 'erfc', 'exp', 'exp2',
    'expm1', 'floor', 'ge', 'gt', 'imag', 'integer_pow', 'iota', 'is_finite',
    'le', 'le_to', 'lgamma', 'log', 'log1p', 'log2', 'logistic', 'lt',
    'lt_to', 'max', 'min', 'mul', 'mulhi', 'ne', 'neg', 'nextafter', 'not',
    'one_minus_square', 'optimization_barrier', 'or', 'pad', 'polygamma',
    'polynomial', 'population_count', 'pow', 'random_clone', 'random_unwrap',
    'random_wrap', 'real', 'reduce_precision', 'rem', 'reshape', 'rev',
    'round', 'rsqrt', 'select_n', 'shift_left', 'shift_right_arithmetic',
    'shift_right_logical', 'sign', 'sin', 'sinh', 'slice', 'split', 'sqrt',
    'square', 'squeeze', 'stack', 'stop_gradient', 'sub', 'tan', 'tanh',
    'tile', 'transpose', 'unstack', 'xor', 'zeta'}
# A reduction of a checked shard_map as one without types, and its parameters.
_PLAIN = {'unreduced_reduce_scatter': 'reduce_scatter_p', **{
    name: f'{row.how}_p' for name, row in anatomy.REDUCTIONS.rows.items()
    if row.how != name}}
# What gives results of the types that a jaxpr of its own says.
_TYPED_BY_JAXPR = {'composite'}


def evaluate(comparer: Comparer, jaxpr: Any, consts: Sequence[Any],
             args: Sequence[Any], known: Sequence[Known]) -> Results:
  """Evaluates a jaxpr, comparing what its equations give.

  Args:
    comparer: where it is evaluated.
    jaxpr: an open one.
    consts: the values of its constants.
    args: of its inputs.
    known: what is known of the inputs.

  Returns:
    The results, and what is known of them.
  """
  env: dict = {}
  env.update(zip(jaxpr.constvars, [(c, Known(frozenset(), True))
                                   for c in consts]))
  env.update(zip(jaxpr.invars, zip(args, known)))

  def read(v):
    if isinstance(v, core.Literal):
      return v.val, Known(frozenset(), True)
    return env[v]

  for eqn in jaxpr.eqns:
    ins = list(map(read, eqn.invars))
    values, knowns = [v for v, _ in ins], [k for _, k in ins]
    rule = _RULES.get(axes_lib.name_of(eqn.primitive), _ordinary)
    env.update(zip(eqn.outvars, zip(*rule(comparer, eqn, values, knowns))))
  outs = list(map(read, jaxpr.outvars))
  return [v for v, _ in outs], [k for _, k in outs]


def closed(jaxpr: Any) -> tuple[core.Jaxpr, Sequence[Any]]:
  """A jaxpr, opened, and its constants."""
  return jaxprs.open_jaxpr(jaxpr), getattr(jaxpr, 'consts', ())


@contextlib.contextmanager
def context(eqn: core.JaxprEqn):
  """The context in which an equation was traced."""
  info = eqn.source_info
  with source_info_util.user_context(info.traceback), eqn.ctx.manager:
    yield


def bind(eqn: core.JaxprEqn, values: Sequence[Any]) -> list[Any]:
  """Binds an equation again, whose types have no axes now."""
  name = axes_lib.name_of(eqn.primitive)
  name, _, ends = name.partition('_start')
  done = name.endswith('_done')
  if axes_lib.is_cast(eqn) or done:
    return list(values)
  with context(eqn):
    if name in _PLAIN or ends == '' and name + '_start' == axes_lib.name_of(
        eqn.primitive):
      return _plain(_PLAIN.get(name, name + '_p'), eqn.params, values)
    params = {k: _without_axes(v) for k, v in eqn.params.items()}
    if name in _TYPED_BY_JAXPR:
      params = {k: jaxprs.map_jaxprs(_untyped, v) for k, v in params.items()}
    return jaxprs.bind_again(eqn, values, params)


def _plain(name: str, params: dict, values: Sequence[Any]) -> list[Any]:
  prim = getattr(parallel, name)
  if name != 'ppermute_p':
    params = {'axis_index_groups': None, **params}
  if prim.multiple_results:
    return list(prim.bind(*values, **params))
  return [prim.bind(v, **params) for v in values]


def _without_axes(param: Any) -> Any:
  """A parameter whose types, of results, vary along no axes."""
  if isinstance(param, core.ShapedArray):
    return (manual_axes.with_axes(param, frozenset())
            if manual_axes.varying(param) else param)
  if isinstance(param, tuple) and any(
      isinstance(p, core.ShapedArray) for p in param):
    return tuple(map(_without_axes, param))
  return param


def _untyped(jaxpr: core.Jaxpr) -> core.Jaxpr:
  """A jaxpr whose variables vary along no axes."""
  new: dict = {}

  def without(v):
    if isinstance(v, (core.Literal, core.DropVar)) or not manual_axes.varying(
        v.aval):
      return v
    if v not in new:
      new[v] = jaxprs.new_var(_without_axes(v.aval))
    return new[v]

  each = lambda vs: list(map(without, vs))
  eqns = [e.replace(invars=each(e.invars), outvars=each(e.outvars))
          for e in jaxpr.eqns]
  return jaxprs.replace_inputs(
      jaxpr, each(jaxpr.invars), constvars=each(jaxpr.constvars),
      outvars=each(jaxpr.outvars), eqns=eqns)


def _known_axes(comparer: Comparer, eqn: core.JaxprEqn,
                knowns: Sequence[Known]) -> list[frozenset]:
  """The axes along which an equation's results may differ."""
  by_type = [manual_axes.differing(v.aval) for v in eqn.outvars]
  if comparer.typed >= comparer.manual:
    return by_type
  inferred = axes_lib.of_results(
      eqn, [k.axes for k in knowns],
      axes_lib.setting(comparer.manual, comparer.plan.note))
  return [t & comparer.typed | i - comparer.typed
          for t, i in zip(by_type, inferred)]


def _operands(eqn: core.JaxprEqn, knowns: Sequence[Known]) -> tuple:
  return tuple(
      sites_lib.Operand(f'operand {n}, {sites_lib.type_text(v.aval)}', k.axes,
                        k.compared)
      for n, (v, k) in enumerate(zip(eqn.invars, knowns))
      if not isinstance(v, core.Literal) and hasattr(v.aval, 'dtype'))


def _compared(comparer: Comparer, eqn: core.JaxprEqn, values: Sequence[Any],
              knowns: Sequence[Known], axes: Sequence[frozenset]) -> Results:
  """Compares an equation's results; gives them and what is known of them."""
  name = axes_lib.name_of(eqn.primitive)
  agree = all(k.compared for k in knowns)
  inside = frozenset().union(*(k.axes for k in knowns))
  if agree and (name in _ELEMENTWISE or axes_lib.is_cast(eqn)) and all(
      inside <= a for a in axes):
    return list(values), [Known(a, True) for a in axes]
  operands = None
  out: list[Known] = []
  for n, (v, value, a) in enumerate(zip(eqn.outvars, values, axes)):
    same = comparer.axes - a
    compare = bool(same) and not isinstance(v, core.DropVar) and (
        digests.comparable(v.aval) and comparer.plan.wants(eqn))
    if compare:
      operands = operands or _operands(eqn, knowns)
      comparer.compare(functools.partial(
          sites_lib.of_result, eqn, n, operands=operands), value, same)
    out.append(Known(a, compare or not same))
  return list(values), out


def _ordinary(comparer: Comparer, eqn: core.JaxprEqn, values,
              knowns) -> Results:
  axes = _known_axes(comparer, eqn, knowns)
  return _compared(comparer, eqn, bind(eqn, values), knowns, axes)


def _call(comparer: Comparer, eqn: core.JaxprEqn, values, knowns) -> Results:
  called, ins = axes_lib.callee(eqn, list(zip(values, knowns)))
  jaxpr, consts = closed(called)
  return evaluate(comparer, jaxpr, consts, [v for v, _ in ins],
                  [k for _, k in ins])


def _expanded(comparer: Comparer, eqn: core.JaxprEqn, values,
              knowns) -> Results:
  """An operation that knows its own types (hijax): what it consists of."""
  operation, = eqn.params.values()  # the parameter's name has changed

  def expand(*args):
    return jax.tree.leaves(operation.expand(
        *operation.in_tree.unflatten(args)))

  checked = releases.check_option()
  avals = [v.aval for v in eqn.invars]
  info = api_util.debug_info('expand', expand, tuple(avals), {})
  with context(eqn), checked(comparer.typed >= comparer.manual):
    jaxpr, _, consts, *_ = pe.trace_to_jaxpr_dynamic(
        lu.wrap_init(expand, debug_info=info), avals)
  return evaluate(comparer, jaxpr, consts, values, knowns)


def _typed_as(v: core.Atom, value: Any) -> Any:
  """A value as an array of a variable's type, for a carry."""
  aval = v.aval
  if not isinstance(aval, core.ShapedArray) or isinstance(value, jax.Array):
    return value
  return jnp.asarray(value, aval.dtype)


def _inputs(comparer: Comparer, jaxpr: core.Jaxpr, knowns: Sequence[Known],
            inferred: Sequence[frozenset] | None) -> list[Known]:
  """Facts about a body's inputs that hold in every iteration."""
  types = [manual_axes.varying(v.aval) for v in jaxpr.invars]
  axes = types if inferred is None else [
      t & comparer.typed | i - comparer.typed for t, i in zip(types, inferred)]
  return [Known(a, k.compared) for a, k in zip(axes, knowns)]


def _of_loop(comparer: Comparer, eqn: core.JaxprEqn, knowns: Sequence[Known]
             ) -> abstract.Ends | None:
  """The axes of a loop's values, where types don't tell all of them."""
  if comparer.typed >= comparer.manual:
    return None
  return axes_lib.of_loop(eqn, [k.axes for k in knowns], axes_lib.setting(
      comparer.manual, comparer.plan.note))


def _loop(comparer: Comparer, eqn: core.JaxprEqn, what: str) -> sites_lib.Loop:
  return sites_lib.Loop(comparer.plan.number(), f'{what} at '
                        f'{sites_lib.place(eqn)}')


def _scan(comparer: Comparer, eqn: core.JaxprEqn, values, knowns) -> Results:
  params = eqn.params
  body, body_consts = closed(params['jaxpr'])
  parts = anatomy.scan(params)
  nc, nk = parts.consts, parts.carries
  inferred = _of_loop(comparer, eqn, knowns)
  inner = _inputs(comparer, body, knowns, inferred and inferred.inputs)
  comparer.flush()
  loop = _loop(comparer, eqn, 'scan')
  init = list(map(_typed_as, eqn.invars[nc:nc + nk], values[nc:nc + nk]))
  length = params['length']

  def step(carry, xs):
    found, count, *carry = carry
    index = length - 1 - count if params['reverse'] else count
    here = comparer.within(found, loop=loop, count=index)
    outs, _ = evaluate(here, body, body_consts, [*values[:nc], *carry, *xs],
                       inner)
    here.flush()
    return [here.found, count + 1, *outs[:nk]], outs[nk:]

  (found, _, *ends), ys = lax.scan(
      step, [comparer.found, jnp.int32(0), *init], list(values[nc + nk:]),
      length=length, reverse=params['reverse'],
      unroll=params['unroll'])
  comparer.rejoin(found, frozenset())
  return _compared(comparer, eqn, [*ends, *ys], knowns,
                   _known_axes(comparer, eqn, knowns))


def unfinished(pred: Any, new: Sequence[Any], old: Sequence[Any]) -> list[Any]:
  """A loop's carries after an iteration.

  Of a loop that is mapped over, each instance has a predicate, and one that is
  done keeps its carries.
  """
  if not jnp.ndim(pred):
    return list(new)
  return [lax.select(lax.broadcast_in_dim(pred, jnp.shape(n),
                                          range(pred.ndim)), n, o)
          for n, o in zip(new, old)]


def _claimed(comparer: Comparer, eqn: core.JaxprEqn, parting: frozenset
             ) -> frozenset:
  """Those axes along which a predicate must be the same, of what it may differ.
  """
  held = map(axes_lib.communicates, axes_lib.inner(eqn))
  return comparer.claimed(eqn, parting & axes_lib.union(held))


def _agreed(comparer: Comparer, eqn: core.JaxprEqn, values, knowns) -> Results:
  """Compares a predicate along the axes of its claim to agree."""
  axes, = _known_axes(comparer, eqn, knowns)
  known, = knowns
  same = comparer.claimed(eqn, known.axes - axes)
  comparer.compare(lambda order: sites_lib.of_choice(
      eqn, 'a predicate that is taken to agree', order, sites_lib.Operand(
          'what it is computed from', known.axes, known.compared)),
                   values[0], same)
  return list(values), [Known(axes, known.compared)]


def _while(comparer: Comparer, eqn: core.JaxprEqn, values, knowns) -> Results:
  params = eqn.params
  body, body_consts = closed(params['body_jaxpr'])
  cond, cond_consts = closed(params['cond_jaxpr'])
  parts = anatomy.while_loop(params)
  nc, nb = parts.tests, parts.consts
  inferred = _of_loop(comparer, eqn, knowns)
  parting = manual_axes.varying(cond.outvars[0].aval)
  if inferred is not None:
    parting = parting & comparer.typed | inferred.predicate - comparer.typed
  predicate: Any = cond.outvars[0].aval
  if not predicate.shape:  # else one example may go on alone
    parting -= _claimed(comparer, eqn, parting)
  inner = _inputs(comparer, body, knowns[nc:], inferred and inferred.inputs)
  comparer.flush()
  loop = _loop(comparer, eqn, 'while loop')
  carry_vars = eqn.invars[nc + nb:]
  init = list(map(_typed_as, carry_vars, values[nc + nb:]))
  same = comparer.axes - parting

  def goes_on(here, carry):
    (pred,), (known,) = evaluate(
        here, cond, cond_consts, [*values[:nc], *carry],
        [*knowns[:nc], *inner[nb:]])
    pred = jnp.asarray(pred)
    operand = sites_lib.Operand('what it is computed from', known.axes,
                                known.compared)
    here.compare(lambda order: sites_lib.of_choice(
        eqn, 'the predicate of the while loop', order, operand), pred, same)
    here.flush()
    return here.least(pred.astype(jnp.int32), same) > 0

  def step(state):
    found, count, pred, *carry = state
    here = comparer.within(found, parting, loop, count)
    outs, _ = evaluate(here, body, body_consts, [*values[nc:nc + nb], *carry],
                       inner)
    here.flush()
    outs = unfinished(pred, outs, carry)
    there = comparer.within(here.found, parting, loop, count + 1)
    pred = goes_on(there, outs)
    return [there.found, count + 1, pred, *outs]

  first = comparer.within(comparer.found, parting, loop, jnp.int32(0))
  pred = goes_on(first, init)
  found, _, _, *ends = lax.while_loop(
      lambda state: jnp.any(state[2]), step,
      [first.found, jnp.int32(0), pred, *init])
  comparer.rejoin(found, parting)
  return _compared(comparer, eqn, ends, knowns,
                   _known_axes(comparer, eqn, knowns))


def _cond(comparer: Comparer, eqn: core.JaxprEqn, values, knowns) -> Results:
  index, *operands = values
  parting = knowns[0].axes
  parting -= _claimed(comparer, eqn, parting)
  same = comparer.axes - parting
  what = sites_lib.Operand('the index', parting, knowns[0].compared)
  comparer.compare(lambda order: sites_lib.of_choice(
      eqn, 'the choice of a branch', order, what), index, same)
  comparer.flush()
  index = comparer.least(jnp.asarray(index).astype(jnp.int32), same)

  def taken(branch):
    jaxpr, consts = closed(branch)
    def run(found, *operands):
      here = comparer.within(found, parting)
      outs, _ = evaluate(here, jaxpr, consts, operands, knowns[1:])
      here.flush()
      return [here.found, *map(_typed_as, jaxpr.outvars, outs)]
    return run

  found, *outs = lax.switch(index, list(map(taken, eqn.params['branches'])),
                            comparer.found, *operands)
  comparer.rejoin(found, parting)
  return _compared(comparer, eqn, outs, knowns,
                   _known_axes(comparer, eqn, knowns))


def _nested(comparer: Comparer, eqn: core.JaxprEqn, values, knowns) -> Results:
  comparer.flush()
  outs, found = mapped(comparer.plan, eqn, values, [k.axes for k in knowns],
                       comparer)
  comparer.rejoin(found, frozenset())
  return _compared(comparer, eqn, outs, knowns,
                   _known_axes(comparer, eqn, knowns))


def mapped(plan, eqn: core.JaxprEqn, values: Sequence[Any],
           ins: Sequence[frozenset], around: Comparer | None, loops: tuple = (),
           counters: Any = None) -> tuple[list[Any], Any]:
  """A shard_map with comparisons, of an equation of one.

  Args:
    plan: the program's.
    eqn: the equation.
    values: the operands.
    ins: the manual axes around it along which these may differ.
    around: that of the map that it is in, if it is nested.
    loops: outside of all shard_maps, around it.
    counters: of these.

  Returns:
    The results, and whether something was found.
  """
  parts = manual_maps.of(eqn)
  outer = around or Comparer(plan, (), jnp.zeros(1, jnp.int32), {}, frozenset(),
                           frozenset(), frozenset(), loops, counters,
                           jnp.bool_(False))
  spec = manual_maps.named  # the axes in a spec
  none = PartitionSpec()
  own = tuple(a for a in parts.mesh.axis_names
              if a in parts.manual.difference(outer.names))
  several = frozenset(a for a in own if parts.mesh.shape[a] > 1)

  def body(found, coordinates, counters, *args):
    if several:
      indices = [lax.axis_index(a).astype(jnp.int32)[None] for a in own]
      coordinates = jnp.concatenate([coordinates, *indices])
    comparer = Comparer(
        plan, outer.names + (own if several else ()), coordinates,
        {**outer.sizes, **parts.mesh.shape}, outer.axes | several,
        outer.manual | several,
        # Without its check an inner one's types say nothing of outer axes.
        outer.typed | several if parts.checked and manual_axes.AXES_OF_ARRAY
        else frozenset(), outer.loops, counters, found)
    jaxpr, consts = closed(eqn.params['jaxpr'])
    known = _entry(comparer, eqn, parts, args, ins, several)
    outs, knowns = evaluate(comparer, jaxpr, consts, args, known)
    for n, (out, k, s) in enumerate(zip(outs, knowns, parts.out_specs)):
      same = several - spec(s) - (comparer.axes - k.axes if k.compared
                                  else frozenset())
      comparer.compare(lambda order, n=n, s=s: sites_lib.of_output(
          eqn, n, s, order), out, same)
    comparer.flush()
    return [comparer.found, *map(_typed_as, jaxpr.outvars, outs)]

  fun = manual_maps.unchecked(
      body, parts, [none, none, none, *parts.in_specs],
      [none, *parts.out_specs])
  with context(eqn):
    found, *outs = fun(outer.found, outer.coordinates, outer.counters, *values)
  return outs, found


def _entry(comparer: Comparer, eqn: core.JaxprEqn, parts, args, ins,
           several: frozenset) -> list[Known]:
  """Compares the arguments of a shard_map along what their specs leave out."""
  jaxpr = jaxprs.open_jaxpr(eqn.params['jaxpr'])
  names = getattr(jaxpr.debug_info, 'arg_names', None) or ()
  axes = axes_lib.at_entry(parts, ins, several)
  known = []
  for n, (v, arg, a, s) in enumerate(zip(jaxpr.invars, args, axes,
                                         parts.in_specs)):
    name = names[n] if n < len(names) and len(names) == len(args) else str(n)
    comparer.compare(functools.partial(
        sites_lib.of_argument, eqn, n, name, s), arg, several - a)
    known.append(Known(a, digests.comparable(v.aval)))
  return known


_RULES: dict[str, Callable[..., Results]] = {
    'scan': _scan, 'while': _while, 'cond': _cond, 'shard_map': _nested,
    'call_hi_primitive': _expanded, 'agreed': _agreed,
    # What another option compares is compared here.
    'compared': lambda _, unused_eqn, values, knowns: (values, knowns),
    **dict.fromkeys(axes_lib.CALLS, _call)}
