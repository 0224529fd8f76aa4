# SPDX-License-Identifier: Apache-2.0
"""Casts where ``vmap(..., spmd_axis_name=)`` of a shard_map asks for them.

Such a ``vmap`` lays its batch out over a mesh axis. It runs after the rewrite,
to which all values were the same along that axis, so where one that is mapped
meets one that isn't, the cast was missing whose transpose sums the gradient of
the other one over the batch (jax#17874, jax#23476).

Here the batched function is rewritten once more, with the specs that it has
then: a value that isn't mapped is the same along the axis, one that is varies.
Casts along other axes are in the function already, and are left as they are.

A function that is traced is rewritten only if the check finds two that meet,
and is traced once more then; one whose operations are executed one by one is
rewritten always.

Cost: nothing for a function of mapped values only.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from jax._src.mend import traces
from jax._src.replication.rules import nested
from jax._src.replication.rules import type_rules
from jax._src.replication.rules import unmapped
from jax.experimental import shard_map as sm


class _Casting:
  """Binds shard_map's primitive with a function that is rewritten first."""

  def __init__(self, prim):
    self.prim = prim

  def bind(self, fun, /, *args, **params):
    mesh = nested.own(params['mesh'], params['auto'])
    thunk = params['out_names_thunk']
    in_rep = [sm._in_names_to_rep(mesh, n) for n in params['in_names']]
    fun, out_rep = sm._efficient_transpose_rewrite_nomatch(fun, mesh, in_rep)
    wanted = lambda: [set(sm._unmentioned(mesh, n)) for n in thunk()]
    fun = fun.wrap(_matched, (mesh, out_rep, wanted), None)
    return self.prim.bind(fun, *args, **params)


def _matched(f, mesh, out_rep, wanted, *args):
  """Casts outputs as out_specs ask; whether they are proven is asked later."""
  outs = f(*args)
  return [type_rules.promote(mesh, x, src, dst)
          for x, src, dst in zip(outs, out_rep(), wanted())]


def casting(process: Callable[..., Any]) -> Callable[..., Any]:
  """Lets what a batched shard_map maps meet what it doesn't.

  Args:
    process: binds a ``shard_map`` under ``vmap``, of a trace, the primitive, a
      function, its arguments and parameters.

  Returns:
    The same, with casts where a batch that names mesh axes asks for them.
  """
  @functools.wraps(process)
  def process_shard_map(trace, prim, fun, args, /, **params):
    names = trace.axis_data.spmd_name
    if names is None or not params['rewrite']:
      return process(trace, prim, fun, args, **params)
    if traces.is_staged(trace):
      try:
        with unmapped.binding(names, cast=False):
          return process(trace, prim, fun, args, **params)
      except unmapped.Uncast:
        traces.retraceable(fun)
    with unmapped.binding(names, cast=True):
      return process(trace, _Casting(prim), fun, args, **params)
  return process_shard_map
