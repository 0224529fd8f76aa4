# SPDX-License-Identifier: Apache-2.0
"""Residuals of a ``custom_vjp`` that all devices have alike.

What a forward rule keeps can be the same on all devices though its type varies:
what is gathered, or cast. Where the backward rule branches by it, the rule is
to be typed as the function was, or gradients are summed once more; and that is
seen in no type of what the rule is given, another map's argument mostly. So the
fact goes along with the value: the forward rule's residuals are a pytree, in
which such a value is in a node of its own, which says along which axes it
agrees; the backward rule is given what the node holds.

Limits: rules under ``optimize_remat`` and vjp3 have no such nodes. Who takes a
derivative outside of the ``shard_map`` and changes what its pullback keeps, so
that devices differ by it, isn't seen.

Cost: a question for each residual that varies; no equation.
"""
from __future__ import annotations

from collections.abc import Callable
import operator
from typing import Any

from jax._src import core
from jax._src import tree_util
from jax._src.varying import agreement
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


class _Shared:
  """A residual, and the axes along which devices have the same."""

  def __init__(self, value: Any, axes: Axes):
    self.value, self.axes = value, axes


tree_util.register_pytree_node(
    _Shared, lambda x: ((x.value,), x.axes),
    lambda axes, values: _Shared(*values, axes))


_any: list[bool] = []  # whether there ever was such a residual


def noting(fwd: Callable[..., Any]) -> Callable[..., Any]:
  """Lets a forward rule note the residuals that are the same on all devices.

  Args:
    fwd: the rule, of the function's arguments.
  """
  if not vt.checking():
    return fwd

  def call(*args, **kwargs):
    pair = fwd(*args, **kwargs)
    if type(pair) not in (tuple, list) or len(pair) != 2:
      return pair  # which is refused
    out, residuals = pair
    leaves, tree = tree_util.tree_flatten(residuals)
    new = [_noted(x, axes) if isinstance(x, core.Tracer) and (
        axes := vt.varying(x.aval)) else x for x in leaves]
    if all(map(operator.is_, leaves, new)):
      return pair
    return type(pair)((out, tree.unflatten(new)))
  return call


def _noted(x: Any, axes: Axes) -> Any:
  same = axes - agreement.differs(x)
  if not same or not (same := vt.nontrivial(same)):
    return x
  _any[:] = [True]
  return _Shared(x, same)


def told(bwd: Callable[..., Any]) -> Callable[..., Any]:
  """A backward rule, of residuals as the forward rule returned them.

  Args:
    bwd: the rule, of residuals and cotangents.
  """
  if not _any:
    return bwd  # nor was there one in a forward rule

  def call(*trees):
    return bwd(*tree_util.tree_map(
        _value, trees, is_leaf=lambda x: type(x) is _Shared))
  return call


def _value(x: Any) -> Any:
  if type(x) is not _Shared:
    return x
  if vt.checking():  # a pullback may be called without a check, or outside
    agreement.agrees(x.value, x.axes)
  return x.value
