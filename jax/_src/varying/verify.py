# SPDX-License-Identifier: Apache-2.0
"""Verifies what a jaxpr's types say varies, by rules of its own.

With ``jax_enable_checks``, whatever is traced, transformed or typed again is
walked over once more. A type that is too narrow is found where it is made: a
device's own value would be given out as everybody's, or a gradient lack a sum.
The rules (``mend.coarse``) need no knowledge of what a primitive computes, and
they have nothing of ``flow``'s, so that one's mistake isn't the other's.

Each equation of a jaxpr is held against the types that its operands have there.
A jaxpr that was traced at narrower types than it is called at is evaluated at
the wider ones for what comes out of it: that is what the call's results need.
A ``shard_map`` without the check has no types inside, and one with the check in
it is looked at along its own axes.

Limits: types may be wider than need be. Rules of a derivative or of another
library that say what they give (``custom_vjp``'s linear part, a user's
``HiPrim``), kernels that can tell devices apart, what ``run_state`` and the
like hold, and the results of a ``shard_map`` without the check are believed,
and before 0.10 a jaxpr whose inputs are refs. Whether a ref is the
one that a program meant, and whether a sum of a gradient is wanted, no type
shows.

Cost: nothing without ``jax_enable_checks``. With it each jaxpr is walked once.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
import weakref

from jax._src import core
from jax._src.mend import coarse
from jax._src.mend import manual_axes
from jax._src.mend import manual_maps
from jax._src.mend import pages
from jax._src import mesh as mesh_lib
from jax._src import source_info_util
from jax._src.varying import types as vt
from jax._src.varying.types import Axes

checked = 0  # equations, since the module was imported, for tests

# By the primitive's name: whether an equation of such parameters says itself
# what varies. The modules that the package lists fill it.
believed: dict[str, Callable[[dict[str, Any]], bool]] = {}
# Their linear part is typed by the rule of the derivative.
_OF_DERIVATIVES = ('custom_lin', 'call_hi_primitive_linearized')

# By whether types are told there, and along which axes; None of all of them.
_verified: dict[tuple[bool, Axes | None], weakref.WeakSet[core.Jaxpr]] = {}


class NarrowTypeError(AssertionError):
  """A value may differ along an axis that its type leaves out."""


def verify(jaxpr: Any, inside: bool | None = None) -> None:
  """Verifies the types of a jaxpr, and of those inside it.

  Args:
    jaxpr: an open or a closed one.
    inside: whether it is from inside of a shard_map with the check on; by
      default whether that is being traced. If not, only a shard_map that it
      holds is looked at.

  Raises:
    NarrowTypeError: with the first equation whose result's type is too narrow.
  """
  _verify(vt.open_jaxpr(jaxpr), vt.checking() if inside is None else inside)


def _verify(jaxpr: core.Jaxpr, inside: bool, along: Axes | None = None) -> None:
  """Verifies a jaxpr; where types tell of some axes only, along these."""
  global checked
  done = _verified.setdefault((inside, along), weakref.WeakSet())
  if jaxpr in done or not vt.CAN_BE_REDUCED and vt.any_ref(
      [v.aval for v in jaxpr.invars]):  # before 0.10
    return
  for eqn in jaxpr.eqns:
    _verify_held(eqn, inside, along)
    if inside:
      checked += 1
      _compare(eqn, _needs(eqn, [vt.varying(v.aval) for v in eqn.invars]),
               along)
  done.add(jaxpr)


def _verify_held(eqn: core.JaxprEqn, inside: bool, along: Axes | None) -> None:
  """Verifies the jaxprs that an equation holds."""
  if vt.name_of(eqn.primitive) == 'shard_map':
    parts = manual_maps.of(eqn)
    # Within one without the check, an outer axis is in no type.
    if not inside:
      along = frozenset(parts.manual)
    elif along is not None:
      along |= parts.manual
    inside = parts.checked
  for inner in coarse.held(eqn):
    _verify(inner, inside, along if inside else None)


def _needs(eqn: core.JaxprEqn, ins: Sequence[Axes]) -> coarse.Found:
  mesh = getattr(eqn.ctx, 'cur_abstract_mesh', None)
  if mesh is None or mesh.empty:
    mesh = mesh_lib.get_abstract_mesh()
  manual = frozenset(mesh.manual_axes)
  return coarse.of_equation(eqn, ins, coarse.Setting(
      manual, _opaque, True, frozenset(a for a, n in mesh.shape.items()
                                       if n == 1)))


def _opaque(eqn: core.JaxprEqn, ins: Sequence[Axes], setting: coarse.Setting
            ) -> coarse.Found | None:
  """Types are believed where something else than their operands makes them."""
  name = vt.name_of(eqn.primitive)
  if name == 'shard_map' and not manual_maps.of(eqn).checked:
    return coarse.none_of(eqn)
  if name in _OF_DERIVATIVES:
    return coarse.none_of(eqn)
  if name in believed:
    with eqn.ctx.manager:  # it may ask which axes are manual there
      return coarse.none_of(eqn) if believed[name](eqn.params) else None
  if coarse.has_rule(eqn) or not coarse.held(eqn):
    return None
  # What applies another jaxpr, or in another way, is believed.
  return coarse.of_call(eqn, ins, setting) or coarse.none_of(eqn)


def verify_bound(prim: core.Primitive, avals: Sequence[Any],
                 params: dict[str, Any]) -> None:
  """Verifies what is about to be bound, which needn't be in any jaxpr."""
  outs = prim.abstract_eval(*avals, **params)[0]
  outs = outs if prim.multiple_results else [outs]
  invars, outvars = ([vt.new_var(a) for a in each] for each in (avals, outs))
  eqn = core.new_jaxpr_eqn(invars, outvars, prim, params, core.no_effects,
                           source_info_util.current())
  _compare(eqn, _needs(eqn, list(map(vt.varying, avals))), None)
  _verify_held(eqn, True, None)


def _compare(eqn: core.JaxprEqn, found: coarse.Found, along: Axes | None
             ) -> None:
  """Holds an equation's types against what is found, along some or all axes."""
  where: list[tuple[str, Any, Axes]] = [
      (f'result {n}', v, a) for n, (v, a) in enumerate(
          zip(eqn.outvars, found.outs)) if not isinstance(v, core.DropVar)]
  where += [(f'operand {n}, a ref that it writes to,', eqn.invars[n], a)
            for n, a in found.writes.items()]
  for what, v, axes in where:
    axes = axes if along is None else axes & along
    if axes and (isinstance(v.aval, core.ShapedArray) or vt.is_ref(v.aval)):
      missing = axes - manual_axes.differing(
          getattr(v.aval, 'inner_aval', v.aval))
      if missing:
        raise NarrowTypeError(_message(eqn, what, v, axes))


def _message(eqn: core.JaxprEqn, what: str, v: Any, axes: Axes) -> str:
  return (
      f'{vt.name_of(eqn.primitive)} at '
      f'{source_info_util.summarize(eqn.source_info)}: {what} must vary over '
      f'{vt.ordered(axes)} and has the type {v.aval.str_short()}, which varies '
      f'over {vt.ordered(vt.varying(v.aval))}. The equation is\n{eqn}\nThis is '
      "a mistake in JAX's types of values inside of shard_map. Please report "
      'the program that shows it. Without jax_enable_checks it runs, and a '
      'result may be wrong.' + pages.see('varying.md#how-it-is-kept-so'))
