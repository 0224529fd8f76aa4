# SPDX-License-Identifier: Apache-2.0
"""When a function of the user's must be traced again with promoted inputs.

Differentiating with respect to a replicated value sums the gradient over
devices, and with respect to a varying one doesn't. A loop's body, or a custom
backward rule, is traced before all is known that may vary. Where what comes of
it shows that the sum isn't what the function means, no re-typing of the traced
jaxpr can mend that: the trace ends in one of these exceptions, and whoever has
the function's inputs casts them, outside, and traces it again.

Both name the way out by hand, for where nobody can: a gradient that is taken
with respect to a value captured from outside of the loop is such a case.
``equations`` tells which equations of a traced jaxpr come of a derivative.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
import contextlib
import operator
from typing import Any

import numpy as np

from jax._src import core
from jax._src import dtypes
from jax._src.mend import pages
from jax._src.varying import casts
from jax._src.varying import context
from jax._src.varying import types as vt
from jax._src.varying.contents import from_derivative, jaxprs_in
from jax._src.varying.types import Axes, NO_AXES


class TracedTooEarly(TypeError):
  """A traced jaxpr is used where its inputs vary over more axes than it fits.

  Attributes:
    axes: the axes of a sum over devices that isn't meant there, or, if
      ``missing``, of one that is and isn't there.
  """

  def __init__(self, axes: Axes, missing: bool = False):
    names = vt.ordered(axes)
    summed = ('so that the gradient is summed over them' if not missing else
              'and so was all else that the gradient depends on, so that it is '
              'not summed over them')
    wrong = ('that sum is wrong' if not missing else 'a sum is missing')
    super().__init__(
        'a function that was traced for later use (jax.closure_convert, '
        'jax.extend.core.jaxpr_as_fun, jax.jit(f).trace, jax.vjp) '
        'differentiates by a value that was the same on all devices along mesh '
        f'axes {names}, {summed}. Expected '
        'arguments that are the same there as well; got some that vary over '
        f'{names}, for which {wrong}. Trace it with an example that '
        'varies: cast the argument first, jax.lax.pcast(x, '
        f"{names}, to='varying') (jax.lax.pvary on older releases)." +
        pages.see('differentiation.md#what-is-cast-for-you'))
    self.axes = axes


@contextlib.contextmanager
def anew(axes: Axes):
  """While a function is traced as if for the first time.

  What its refs rose to varies before its own casts do something to it.
  """
  widened = (*context.keyed.value.refs_widened, axes)
  with context.replacing('refs_widened', widened), casts.tracing_again():
    yield


# By the kind, 'ref': has what the axes say reach an operand that isn't cast, as
# its own trace and the current one hold it. The package's modules fill it.
promoters: dict[str, Callable[[Any, Axes], None]] = {}


class RefGrew(TypeError):
  """A ref varies in the end, and a derivative was taken as if it didn't.

  Attributes:
    refs: the refs, as whoever traced the function holds them, each with what it
      must vary over.
    axes: what any of them must vary over that it doesn't.
  """

  # Of loops in loops, each of which must be traced again.
  MOST_RETRIES = 4

  def __init__(self, refs: Iterable[tuple[Any, Axes]], axes: Axes):
    names = vt.ordered(axes)
    super().__init__(
        'jax.new_ref: a function that differentiates uses a ref, whose content '
        f'was the same on all devices along mesh axes {names} when it was '
        'traced: which gradients are summed over them goes by that; expected a '
        f'ref of that type, got one that varies over {names} by then, for '
        'which a sum can be wrong or missing. Make the ref from a value that '
        'varies over those axes: '
        f"jax.new_ref(jax.lax.pcast(x, {names}, to='varying'))." +
        pages.see('varying_errors.md#writes-to-refs'))
    self.refs = list(refs)
    self.axes = axes

  def retry(self, leaves: list, trace: Callable[[list], Any]) -> Any:
    """``trace`` of the same leaves, the refs promoted.

    Raises:
      RefGrew: itself, if a ref was made in what is traced again.
    """
    for ref, axes in self.refs:
      if not isinstance(ref, core.Tracer) or (
          not ref._trace.is_valid() or len(
              context.keyed.value.refs_widened) > self.MOST_RETRIES):
        raise self
      promoters['ref'](ref, axes)
    with anew(self.axes):
      return trace(leaves)


class CarryGrew(Exception):
  """A carry varies in the end, and the body has summed a derivative by it.

  Attributes:
    promoted: the operands of the loop, each with what it must vary over.
    carry: which of them are the carry, from one position to another.
    axes: what any of them must vary over that it doesn't.
    trace: what the loop is bound in.
  """

  def __init__(self, promoted: Iterable[tuple[Any, Axes]],
               carry: tuple[int, int], axes: Axes):
    super().__init__('lax.scan or lax.while_loop: the initial value must vary '
                     f'over {vt.ordered(axes)}; cast it with jax.lax.pcast' +
                     pages.see('varying.md#the-rules'))
    self.promoted = list(promoted)
    self.carry = carry
    self.axes = axes
    self.trace = core.trace_ctx.trace

  def axes_of(self, leaves: list, trace: core.Trace) -> list[Axes] | None:
    """The axes that each leaf of the initial value must vary over.

    A leaf that the body hands on untouched is a constant of the loop by then,
    and one of a weak type can have been converted; both keep their order.

    Args:
      leaves: the values that the loop was called with.
      trace: where it was called.

    Returns:
      The axes by leaf; None if that isn't known, as where a leaf is there more
      than once, or if it is another loop whose carry grew, within this one.
    """
    first, end = self.carry
    carry = self.promoted[first:end]
    if trace is not self.trace or len(set(map(id, leaves))) < len(leaves):
      return None
    kept = leaves
    if len(leaves) != len(carry):
      constants = {id(x) for x, _ in self.promoted[:first]}
      kept = [x for x in leaves if id(x) not in constants]
    known = {id(x) for x, _ in carry}.intersection(map(id, leaves))
    if len(kept) != len(carry) or not all(
        x is y or id(x) not in known and id(y) not in known
        for x, (y, _) in zip(kept, carry)):
      return None
    found = {id(x): axes for x, (_, axes) in zip(kept, carry)}
    return [found.get(id(x), NO_AXES) for x in leaves]


class DivergentDerivativeError(ValueError):
  """A derivative is summed over devices where only some of them arrive.

  If it is one with respect to something that can be promoted, nothing is left
  to sum. Of a loop, what comes to vary is promoted; of a backward rule, what
  ``autodiff.retried_rules`` finds.

  Attributes:
    axes: the axes that it is summed over.
    sure: whether devices surely diverge there.
    retries: how often tracing again was of no use.
  """

  # Each level doubles the traces of a program that is refused in the end.
  MOST_RETRIES = 2

  def __init__(self, message: str, axes: Axes, sure: bool = True):
    super().__init__(message)
    self.axes, self.sure = axes, sure
    self.retries = 0

  def retry(self, leaves: list, trace: Callable[[list], Any],
            axes: list[Axes]) -> Any:
    """``trace`` of the leaves, floating ones promoted.

    Args:
      leaves: the values that were given to what was refused.
      trace: traces it again, with other values in their place.
      axes: what each of the leaves comes to vary over.

    Returns:
      What ``trace`` returns.

    Raises:
      DivergentDerivativeError: itself, if no value can be promoted, or if
        ``trace`` raises, whose error is of a program that isn't the user's.
    """
    new = list(map(promoted, leaves, axes))
    self.retries += 1
    if all(map(operator.is_, new, leaves)) or self.retries > self.MOST_RETRIES:
      raise self
    try:
      with casts.tracing_again():
        return trace(new)
    except Exception:
      raise self from None


def promoted(x, axes: Axes):
  """A value, promoted if it is floating."""
  try:
    aval = vt.typeof(x)
  except TypeError:  # such as a symbolic zero
    return x
  if (vt.promotable(aval, axes | vt.varying(aval))
      and dtypes.issubdtype(aval.dtype, np.inexact)):
    return vt.cast(x, axes)
  return x


def equations(jaxpr: core.Jaxpr, derived: bool = False
              ) -> Iterator[tuple[core.JaxprEqn, bool]]:
  """The equations of the jaxpr and of those inside it.

  Args:
    jaxpr: a jaxpr.
    derived: whether reverse-mode differentiation made it.

  Yields:
    Each equation, and whether reverse-mode differentiation made it, or the loop
    or call that it is in.
  """
  for eqn in jaxpr.eqns:
    new = derived or from_derivative(eqn)
    yield eqn, new
    for sub in jaxprs_in(eqn.params):
      yield from equations(sub, new)
