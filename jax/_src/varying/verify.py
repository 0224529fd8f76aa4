# SPDX-License-Identifier: Apache-2.0
"""Verifies what a jaxpr's types say varies, by rules of its own.

With ``jax_enable_checks``, whatever is traced, transformed or typed again is
walked over once more. A type that is too narrow is found where it is made: a
device's own value would be given out as everybody's, or a gradient lack a sum.
The rules (``required``) need no knowledge of what a primitive computes, and
they have nothing of ``flow``'s, so that one's mistake isn't the other's:

* a result varies at least along what the operands do, less the axes that a
  reduction over devices names;
* an equation that holds a jaxpr gives what that jaxpr makes of its operands; of
  a loop, of the carries that it ends with;
* what a loop or branch changes varies along its predicate. An axis of size 1
  counts for no predicate: no two devices part there;
* a ref's content varies along whatever is written to it, and where.

Each equation of a jaxpr is held against the types that its operands have there.
A jaxpr that was traced at narrower types than it is called at is evaluated at
the wider ones for what comes out of it: that is what the call's results need.

Limits: types may be wider than need be. Rules of a derivative or of another
library that say what they give (``custom_vjp``'s linear part, a user's
``HiPrim``), kernels that can tell devices apart, what ``run_state`` and the
like hold, and a ``shard_map`` without the check are believed, and before 0.10 a
jaxpr whose inputs are refs. Whether a ref is the one that a program meant, and
whether a sum of a gradient is wanted, no type shows.

Cost: nothing without ``jax_enable_checks``. With it each jaxpr is walked once.
"""
from __future__ import annotations

import weakref

from jax._src import core
from jax._src.mend import manual_axes
from jax._src.mend import pages
from jax._src import source_info_util
from jax._src.varying import required
from jax._src.varying import types as vt
from jax._src.varying.required import axes_of
from jax._src.varying import sources
from jax._src.varying.types import Axes

checked = 0  # equations, since the module was imported, for tests

_verified: tuple = (weakref.WeakSet(), weakref.WeakSet())  # outside; inside


class NarrowTypeError(AssertionError):
  """A value may differ along an axis that its type leaves out."""


def verify(jaxpr, inside: bool | None = None) -> None:
  """Verifies the types of a jaxpr, and of those inside it.

  Args:
    jaxpr: an open or a closed one.
    inside: whether it is from inside of a shard_map with the check on; by
      default whether that is being traced. If not, only a shard_map that it
      holds is looked at.

  Raises:
    NarrowTypeError: with the first equation whose result's type is too narrow.
  """
  global checked
  jaxpr = vt.open_jaxpr(jaxpr)
  inside = vt.checking() if inside is None else inside
  if jaxpr in _verified[inside] or not vt.CAN_BE_REDUCED and vt.any_ref(
      [v.aval for v in jaxpr.invars]):  # before 0.10
    return
  for eqn in jaxpr.eqns:
    name = vt.name_of(eqn.primitive)
    if name == 'shard_map':
      if required.checks(eqn):
        verify(eqn.params['jaxpr'], True)
    elif not name.startswith(required.WITHOUT_TYPES):
      for inner in sources.jaxprs_of(eqn):
        verify(inner, inside)
    if inside:
      checked += 1
      _compare(eqn, *required.needs(eqn, list(map(axes_of, eqn.invars))))
  _verified[inside].add(jaxpr)


def _differs(aval) -> Axes:
  """The axes along which a type lets a value differ, of each kind."""
  return vt.varying(aval) | manual_axes.unreduced(aval)


def verify_bound(prim: core.Primitive, avals, params) -> None:
  """Verifies what is about to be bound, which needn't be in any jaxpr."""
  outs = prim.abstract_eval(*avals, **params)[0]
  outs = outs if prim.multiple_results else [outs]
  eqn = core.new_jaxpr_eqn(
      *([vt.new_var(a) for a in each] for each in (avals, outs)), prim, params,
      core.no_effects, source_info_util.current())
  _compare(eqn, *required.needs(eqn, list(map(vt.varying, avals))))
  for inner in sources.jaxprs_of(eqn):
    verify(inner, True)


def _compare(eqn: core.JaxprEqn, outs, writes) -> None:
  where = [(f'result {n}', v, a) for n, (v, a) in enumerate(
      zip(eqn.outvars, outs)) if not isinstance(v, core.DropVar)]
  where += [(f'operand {n}, a ref that it writes to,', eqn.invars[n], a)
            for n, a in writes.items()]
  for what, v, axes in where:
    if axes and (isinstance(v.aval, core.ShapedArray) or vt.is_ref(v.aval)):
      missing = axes - _differs(getattr(v.aval, 'inner_aval', v.aval))
      if missing:
        raise NarrowTypeError(_message(eqn, what, v, axes))


def _message(eqn: core.JaxprEqn, what: str, v, axes: Axes) -> str:
  return (
      f'{vt.name_of(eqn.primitive)} at '
      f'{source_info_util.summarize(eqn.source_info)}: {what} must vary over '
      f'{vt.ordered(axes)} and has the type {v.aval.str_short()}, which varies '
      f'over {vt.ordered(axes_of(v))}. The equation is\n{eqn}\nThis is a '
      "mistake in JAX's types of values inside of shard_map. Please report the "
      'program that shows it. Without jax_enable_checks it runs, and a result '
      'may be wrong.' +
      pages.see('varying.md#how-it-is-kept-so'))
