# SPDX-License-Identifier: Apache-2.0
"""Reductions over several mesh axes of a value that varies over some of them.

``psum``, ``pmax``, ``pmin`` and ``psum_scatter`` cast what they reduce to vary
along the axes that they reduce over. From 0.8.2 a check before that cast wants
the value to vary over all of the axes, or over none. Where ``jax.auto_pcast``
is off, whoever wrote the program casts, and what they forgot stays refused.
"""
from __future__ import annotations

from jax._src.mend import releases

_auto_pcast = releases.auto_pcast()
_REDUCTIONS = frozenset([
    'jax.lax.psum', 'jax.lax.pmax', 'jax.lax.pmin', 'jax.lax.psum_scatter'])


def common_state(states: set[str], name: str) -> set[str]:
  """The state to treat a value as that is in ``states`` along several axes.

  Args:
    states: of 'varying', 'invarying', 'reduced' and 'unreduced', those that
      the value is in along one of the axes at least.
    name: the public name of the function that reduces over the axes.

  Returns:
    ``{'varying'}`` if a cast of the rest of the axes leads there and may be
    put in, or ``states``.
  """
  if (states == {'varying', 'invarying'} and name in _REDUCTIONS
      and (_auto_pcast is None or _auto_pcast.value)):
    return {'varying'}
  return states
