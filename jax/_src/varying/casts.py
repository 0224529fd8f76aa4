# SPDX-License-Identifier: Apache-2.0
"""A user's own casts, where a function is traced again with promoted inputs.

``pcast(x, axes, to='varying')`` is refused where x varies along ``axes``
already, and that guards its user. A loop's body, a backward rule, or a function
of a solve, that is traced again (``retrace``, ``rules.solves``) was right with
its casts when it was traced first, and has no say in what it is given then:
what varies already by a promotion is what the cast was to make of it. So such a
cast does nothing there, and of several axes those that are left count. A
backward rule whose function was typed again (``backward``) is traced once, with
such residuals, and no otherwise.

Cost: outside of that a look at a flag for each cast by hand.
"""
from __future__ import annotations

from collections.abc import Callable
import contextlib
from typing import Any

from jax._src import tree_util
from jax._src.varying import context
from jax._src.varying import types as vt


def tracing_again() -> contextlib.AbstractContextManager[None]:
  """While a function is traced again, with promoted inputs."""
  return context.replacing('traced_again', True)


def traced_again() -> bool:
  """True if what is traced was traced before, with inputs that varied less."""
  return context.keyed.value.traced_again


def cast_missing_axes(cast: Callable[..., Any], x: Any, axis_name, /,
                      **options) -> Any:
  """Casts each leaf along those axes that it doesn't vary along yet.

  Args:
    cast: ``lax.pcast`` or ``lax.pvary``.
    x: a pytree of arrays.
    axis_name: an axis, or a tuple of axes.
    **options: the rest of the arguments.

  Returns:
    ``x``, with leaves that vary along all of ``axis_name``.
  """
  axes = axis_name if isinstance(axis_name, tuple) else (axis_name,)

  def of_leaf(leaf):
    left = tuple([a for a in axes if a not in vt.varying(vt.typeof(leaf))])
    return cast(leaf, left, **options) if left else leaf

  with context.replacing('traced_again', False):
    return tree_util.tree_map(of_leaf, x)
