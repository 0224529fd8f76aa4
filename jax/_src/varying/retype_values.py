# SPDX-License-Identifier: Apache-2.0
"""Jaxprs that are about to be evaluated, at the types of what they are given.

What is traced for later, such as the functions of a linear solve, a converted
closure or a derivative rule, can be applied to values that vary over other axes
than those it was traced with. If over more, it is re-typed; if over fewer, the
values are cast where an equation would refuse them.

Cost: a comparison of types, and of the equations' where values vary over fewer.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
import operator

from jax._src import core
from jax._src.varying import agreement
from jax._src.varying import context
from jax._src.varying import flow
from jax._src.varying import notes
from jax._src.varying import outdated
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying.types import Axes
from jax._src.varying import retype

_type_of = operator.attrgetter('aval')


def for_directions(evaluate: Callable[..., list]) -> Callable[..., list]:
  """``core.eval_jaxpr``, where what varies over more axes are directions.

  Nothing is differentiated by what meets them: no sum can be missing.
  """
  return functools.partial(context.run, 'directions', evaluate)


def retype_for_values(jaxpr: core.Jaxpr, consts, args):
  """A jaxpr that is about to be evaluated, at the types of what it is given.

  What is traced for later, such as the functions of a linear solve, a converted
  closure or a derivative rule, can be applied to values that vary over more
  axes than those it was traced with.

  Args:
    jaxpr: what is evaluated.
    consts: the values that it captures.
    args: its arguments.

  Returns:
    The three as they are if that can be evaluated. If a value varies over more
    axes than its variable, the jaxpr re-typed, without captured values, and all
    values as arguments, cast to its inputs. If one varies over fewer, and meets
    another that doesn't, the values cast to what they vary over in the jaxpr.
  """
  if not vt.checking():
    return jaxpr, consts, args
  if type(jaxpr.debug_info.traced_for) is not str:
    notes.inherit(jaxpr)
  binders, values = [*jaxpr.constvars, *jaxpr.invars], [*consts, *args]
  try:  # the usual answer, in the fewest steps
    if vt.vary_alike(list(map(_type_of, binders)), list(map(_type_of, values))):
      return jaxpr, consts, args
  except AttributeError:  # a number
    pass
  narrow = {}
  for v, x in zip(binders, values):
    aval = vt.typeof(x)
    if aval is not v.aval:
      axes, traced = vt.varying(aval), vt.varying(v.aval)
      if axes != traced:
        if axes - traced:
          return _retype_wider(jaxpr, values)
        narrow[v] = axes
  if narrow and _clash(jaxpr, narrow):
    cast = [vt.cast(x, vt.varying(v.aval)) for v, x in zip(binders, values)]
    return jaxpr, cast[:len(consts)], cast[len(consts):]
  return jaxpr, consts, args


def _clash(jaxpr: core.Jaxpr, narrow: dict[core.Var, Axes]) -> bool:
  """True if an equation refuses operands that vary over fewer axes.

  It does if they varied alike and don't, or if it is a reduction over an axis
  that one doesn't vary over.

  Args:
    jaxpr: what is evaluated.
    narrow: what its inputs vary over, for those that vary over fewer axes than
      they did when it was traced. It is extended by what depends on them.
  """
  for eqn in jaxpr.eqns:
    atoms = [v for v in eqn.invars if type(v) is core.Var]
    if narrow.keys().isdisjoint(atoms):
      continue
    traced = [vt.varying(v.aval) for v in eqn.invars]
    axes = [narrow.get(v, a) if type(v) is core.Var else a
            for v, a in zip(eqn.invars, traced)]
    rule = flow.rules.get(vt.name_of(eqn.primitive))
    if rule is flow.each:
      for out, a, t in zip(eqn.outvars, axes, traced):
        held = vt.varying(out.aval)
        if t - held - a:
          return True
        if t - a:
          narrow[out] = held - (t - a)
      continue
    if rule is not None:
      continue
    if len(set(traced)) == 1 and len(set(axes)) > 1:
      return True
    less = flow.union(traced) - flow.union(axes)
    if less:
      narrow.update((v, vt.varying(v.aval) - less) for v in eqn.outvars)
  return False


def _retype_wider(jaxpr: core.Jaxpr, values):
  from jax._src.interpreters import partial_eval as pe  # pylint: disable=g-import-not-at-top
  jaxpr = pe.convert_constvars_jaxpr(jaxpr)
  joined = [vt.varying(v.aval) | vt.varying(vt.typeof(x))
            for v, x in zip(jaxpr.invars, values)]
  region = flow.Region(jaxpr)
  region.facts = lambda n: agreement.differs(values[n])
  region.run(joined)
  missing = not context.running.now.directions and outdated.missing_sums(region)
  if missing:
    raise retrace.TracedTooEarly(missing, missing=True)
  if context.running.now.directions:
    outdated.accept(region)
  return retype.rebuild(region), (), [
      vt.cast(x, a) for x, a in zip(values, joined)]
