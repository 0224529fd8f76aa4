# SPDX-License-Identifier: Apache-2.0
"""The table of forms, and what a form is written with.

A form is a function of one device's ``a`` (which varies over 'x'), ``b`` (over
'y'), ``c`` (over both) and ``w`` (over neither).
"""
import jax
from jax import lax
from varying.testing.common import axes_of
from varying.testing.common import cast


AX = ('x', 'y')
LATER = jax.__version_info__ >= (0, 7)
FORMS = {}
sharded_now = [True]  # not in the emulation


def vary(x, axes=AX):
  """``x``, cast to vary along ``axes``."""
  axes = tuple(a for a in axes if a not in axes_of(x))
  if not axes or not sharded_now[0]:
    return x
  return cast(x, axes)


def meet(x):
  """``x``, as a collective's operand, mapped over both axes."""
  if sharded_now[0]:
    return x
  return x + 0.0 * (lax.axis_index('x') + lax.axis_index('y'))


def form(claims, **options):
  """Puts a form in the table.

  Args:
    claims: the axes of each result, separated by commas.
    **options: ``rough``, it has no derivative; ``fwd=False``, no forward one;
      ``ref``, vmap with axis names can't emulate it.

  Returns:
    A decorator.
  """

  def put(f):
    FORMS[f.__name__] = (f, claims.split(','), options)
    return f

  return put
