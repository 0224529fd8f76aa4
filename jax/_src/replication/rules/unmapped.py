# SPDX-License-Identifier: Apache-2.0
"""Operands that ``vmap(..., spmd_axis_name=)`` of a shard_map refuses to mix.

Such a ``vmap`` lays its batch out over a mesh axis, after the rewrite, which
knows nothing of that axis: where a value that is mapped meets one that isn't,
no sum over the axis would be in the gradient of the other one. They meet in a
primitive whose operands' types differ, or in a loop or branch of which an
output depends on both; integers have no gradient, so a count, an index or a
predicate may be of any type.

What is refused while it is traced is traced once more, with casts (``mapped``).
"""
from __future__ import annotations

import contextlib
import threading

from jax._src import core
from jax._src import dtypes
from jax._src.mend import anatomy
from jax._src.mend import foreign
from jax._src.mend import pages


class Uncast(ValueError):
  """Operands mapped over the mesh axis of a vmap meet unmapped ones."""


class _Batches(threading.local):
  """The mesh axes of batches whose shard_map is being bound.

  Attributes:
    bound: all of them.
    cast: those along which casts are inserted, so that types may differ.
  """
  bound: frozenset = frozenset()
  cast: frozenset = frozenset()


_batches = _Batches()


@contextlib.contextmanager
def binding(names, cast: bool):
  """Within, a shard_map is bound whose specs have the axes of a batch.

  What is outside of the batch sees no batch: in a derivative of it, residuals
  have these axes as they have others.

  Args:
    names: the axes.
    cast: whether casts are inserted where a mapped value meets one that isn't.
  """
  before, env = (_batches.bound, _batches.cast), core.get_axis_env()
  _batches.bound |= frozenset(names)
  _batches.cast |= frozenset(names if cast else ())
  core.trace_ctx.set_axis_env(core.AxisEnv(
      env.axis_sizes, env.spmd_axis_names - set(names)))
  try:
    yield
  finally:
    _batches.bound, _batches.cast = before
    core.trace_ctx.set_axis_env(env)


def _names():
  """The mesh axes of batches, along which operands' types must not differ."""
  return (core.get_axis_env().spmd_axis_names | _batches.bound) - _batches.cast


def refuse_partly_mapped(prim, in_rep) -> None:
  """Raises where operands mapped over a vmap's mesh axis meet unmapped ones.

  Args:
    prim: a primitive in which all operands meet.
    in_rep: their replication types; None for a literal.

  Raises:
    Uncast: in ``vmap(..., spmd_axis_name=)``, if the operands differ so.
  """
  names = _names()
  if names and len({frozenset(names.intersection(r)) for r in in_rep
                    if r is not None}) > 1:
    raise Uncast(
        f'jax.vmap with spmd_axis_name {tuple(names)} of shard_map: expected '
        f'operands of {prim} that are all mapped or all not, got '
        f'replication types {in_rep}. Map the others, too, for instance with '
        'jax.numpy.broadcast_to, or pass check_rep=False.' +
        pages.see('replication.md#a-batch-over-a-mesh-axis'))


def refuse_partly_mapped_within(prim, in_rep, params, reached) -> None:
  """Raises where mapped and unmapped operands meet in a primitive's body.

  Args:
    prim: the primitive.
    in_rep: as for ``refuse_partly_mapped``.
    params: the primitive's parameters.
    reached: a function of an operand's index: the outputs that depend on it.

  Raises:
    Uncast: as ``refuse_partly_mapped``, if an output depends on two that
      differ.
  """
  names = _names()
  if not names or len({frozenset(names.intersection(r)) for r in in_rep
                       if r is not None}) < 2:
    return
  avals = _operands(prim, params)
  if avals is None or len(avals) != len(in_rep):
    return refuse_partly_mapped(prim, in_rep)
  seen: dict[int, list] = {}
  for i, (r, aval) in enumerate(zip(in_rep, avals)):
    if r is not None and dtypes.issubdtype(
        getattr(aval, 'dtype', bool), dtypes.np.inexact):
      for out in reached(i):
        seen.setdefault(out, []).append(r)
  for types in seen.values():
    refuse_partly_mapped(prim, types)


def _operands(prim, params):
  """The types of a primitive's operands by its parameters, or None."""
  if foreign.name_of(prim) == 'cond':
    index = core.ShapedArray((), dtypes.np.dtype('int32'))
    return [index, *params['branches'][0].in_avals]
  if foreign.name_of(prim) == 'while':
    loop = anatomy.while_loop(params)
    inputs = [*loop.predicate.invars[:loop.tests], *loop.body.invars]
    return [v.aval for v in inputs]
  for body in params.values():
    if isinstance(body, core.ClosedJaxpr):
      return body.in_avals
  return None
