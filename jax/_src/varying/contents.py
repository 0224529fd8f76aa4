# SPDX-License-Identifier: Apache-2.0
"""Contents of a jaxpr that matter where devices diverge, looked up once.

Loops and branches nest, and each level asks the same of all that is inside it.
A jaxpr is looked through once, those in its equations' parameters included; the
answer lives as long as the jaxpr does. So the cost of a nest is linear in its
size, whatever its depth.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
import itertools
import operator
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import permute
from jax._src import source_info_util
from jax._src.util import weakref_lru_cache
from jax._src.varying import notes
from jax._src.varying import types as vt
from jax._src.varying.types import Axes, NO_AXES

# These name an axis but don't communicate over it.
_LOCAL = frozenset(['axis_index', 'shard_map', *anatomy.named(anatomy.CASTS)])
# What an equation's parameters are mostly.
_PLAIN = frozenset([bool, int, float, str, type(None)])

jaxprs_in = jaxprs.in_params

# These have axes of an array, and don't communicate.
_POSITIONAL = frozenset([
    'reduce_sum', 'reduce_max', 'reduce_min', 'reduce_prod', 'reduce_and',
    'reduce_or', 'argmax', 'argmin'])

# These are about predicates, and choose by one.
_CHOICES = frozenset(['cond', 'while'])
_PREDICATES = _CHOICES | {'agreed', 'doubted'}


class Contents(NamedTuple):
  """Contents of a jaxpr and of those inside it.

  Attributes:
    collectives: the mesh axes that collectives are over.
    permutes: whether one of them is a ppermute that waits for all devices.
    sums: the axes of sums over devices whose result is the same on all.
    derived_sums: the axes of those that come of a derivative.
    derives: whether an equation comes of one.
    differentiates: whether it was taken meanwhile, be an equation left or not.
    takes_gradient: whether one was whose result is used (``notes``).
    derived_only: those of the collectives' axes over which all come of one.
    agrees: whether a predicate's type says that it agrees (``agreed``).
    requires: whether something in it is to agree (``requirements``).
    reads: which inputs an equation uses or an output returns.
  """
  collectives: Axes
  permutes: bool
  sums: Axes
  derived_sums: Axes
  derives: bool
  differentiates: bool
  takes_gradient: bool
  derived_only: Axes
  agrees: bool
  requires: bool
  reads: tuple[bool, ...]

  def waits(self, axes: Axes) -> bool:
    """True if a collective waits for devices along ``axes``.

    XLA's permutation has no groups of its own: on CPU it waits for every
    device, unless it is marked (``mend.permute``).
    """
    return self.permutes or not axes.isdisjoint(self.collectives)


def named_axes(eqn: core.JaxprEqn) -> Axes:
  """The axes that the equation communicates over."""
  return axes_of_collective(eqn.primitive, eqn.params)


def axes_of_collective(primitive: core.Primitive, params: dict[str, Any]
                       ) -> Axes:
  """The axes that a primitive of these parameters communicates over."""
  axes = (params['axes'] if 'axes' in params else
          params['axis_name'] if 'axis_name' in params else ())
  if not axes or vt.name_of(primitive) in _LOCAL:
    return NO_AXES
  try:
    return frozenset(axes if isinstance(axes, (tuple, list)) else (axes,))
  except TypeError:  # not names
    return NO_AXES


def predicate_axes(eqn: core.JaxprEqn) -> Axes:
  """The axes that the predicate varies over; none of what isn't a choice."""
  if vt.name_of(eqn.primitive) not in _CHOICES:
    return NO_AXES
  loop: Any = anatomy.loop(eqn)
  predicate = eqn.invars[0] if loop is None else loop.predicate.outvars[0]
  return vt.varying(predicate.aval)


def from_derivative(eqn: core.JaxprEqn) -> bool:
  """True if reverse-mode differentiation made the equation.

  0.6.0 doesn't show transformations in the text of a name stack without a name.
  """
  return _is_of(eqn, 'transpose')


def is_differentiated(eqn: core.JaxprEqn) -> bool:
  """True if a derivative was taken of the equation, or made it."""
  return _is_of(eqn, 'jvp')


def _is_of(eqn: core.JaxprEqn, transformation: str) -> bool:
  for s in eqn.source_info.name_stack.stack:
    if (isinstance(s, source_info_util.Transform)
        and s.name == transformation):
      return True
  return False


# The configuration has no part in it.
cached: Callable[..., Any] = functools.partial(
    weakref_lru_cache, trace_context_in_key=False)


_OPERANDS = operator.attrgetter('invars')


@cached
def contents(jaxpr: core.Jaxpr) -> Contents:
  """The contents of the jaxpr, with those of the jaxprs inside it."""
  collectives = plain = sums = derived_sums = NO_AXES
  permutes = derives = agrees = requires = False
  note = notes.note_of(jaxpr)
  differentiates = note is not None and note.differentiates
  takes_gradient = note is not None and note.takes_gradient
  eqns = jaxpr.eqns
  used = set(map(id, itertools.chain(jaxpr.outvars, *map(_OPERANDS, eqns))))
  for eqn in eqns:
    params = eqn.params
    if not derives and eqn.source_info.name_stack.stack:
      derives = from_derivative(eqn)
    if not params:
      continue
    predicate = NO_AXES
    if 'axes' in params or 'axis_name' in params:
      known_as = vt.name_of(eqn.primitive)
      if known_as not in _LOCAL and known_as not in _POSITIONAL:
        collectives |= (axes := named_axes(eqn))
        if axes and not (derives and from_derivative(eqn)):
          plain |= axes
        permutes |= (known_as == 'ppermute' and
                     type(params['axis_name']) is not permute.PartlyReached)
        if known_as == 'psum_invariant':
          sums |= axes
          if derives and from_derivative(eqn):
            derived_sums |= axes
    elif eqn.primitive.name in _PREDICATES:
      known_as = vt.name_of(eqn.primitive)
      agrees |= known_as == 'agreed'
      requires |= known_as in ('agreed', 'doubted')
      if known_as in _CHOICES:
        predicate = predicate_axes(eqn)
    for name in params:
      value = params[name]
      if type(value) in _PLAIN or name == 'axes' or (
          type(value) is tuple and _PLAIN.issuperset(map(type, value))):
        continue
      for sub in jaxprs.within(value):
        inside = contents(sub)
        collectives |= inside.collectives
        permutes |= inside.permutes
        derives |= inside.derives
        differentiates |= inside.differentiates
        takes_gradient |= inside.takes_gradient
        agrees |= inside.agrees
        requires |= inside.requires or not predicate.isdisjoint(
            inside.collectives)
        derived = derives and from_derivative(eqn)
        plain |= (NO_AXES if derived else
                  inside.collectives) - inside.derived_only
        if inside.sums:
          sums |= inside.sums
          derived_sums |= inside.sums if derived else inside.derived_sums
  return Contents(collectives, permutes, sums, derived_sums, derives,
                  differentiates or derives, takes_gradient,
                  collectives - plain, agrees, requires,
                  tuple(map(used.__contains__, map(id, jaxpr.invars))))


def divergence_is_harmless(jaxpr: core.Jaxpr, axes: Axes) -> bool:
  """True if no collective in the jaxpr waits for devices along ``axes``."""
  return not contents(jaxpr).waits(axes)


def without_unused_sums(jaxpr: core.Jaxpr, axes: Axes) -> core.Jaxpr:
  """The jaxpr, without sums over ``axes`` that nothing uses.

  Where one input's cotangent is wanted, another's is summed as well, though
  nobody reads it; where devices diverge that would be refused. With a sum
  that is used, it would be anyway, and the jaxpr is returned as it is.
  """
  if jaxpr.constvars or not axes & contents(jaxpr).sums:
    return jaxpr
  from jax._src.interpreters import partial_eval as pe  # pylint: disable=g-import-not-at-top
  used, _ = pe.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), True)
  return jaxpr if axes & contents(used).sums else used


def for_outputs(jaxpr: core.Jaxpr, outputs: list[bool]) -> core.Jaxpr:
  """The jaxpr that makes some outputs; captured values are its first inputs."""
  from jax._src.interpreters import partial_eval as pe  # pylint: disable=g-import-not-at-top
  return pe.dce_jaxpr(pe.convert_constvars_jaxpr(jaxpr), outputs, True)[0]
