# SPDX-License-Identifier: Apache-2.0
"""Searches in a table whose size is symbolic (jax#36766, jax#22489).

`jax.numpy.searchsorted`, and `digitize` and `interp` by it, choose a dtype by
the table's size, and halve the table as often as the size says, while they are
traced. A symbolic size isn't known then. Here the same methods take what they
need of it when the program runs:

* ``scan`` and ``scan_unrolled`` are one loop of as many steps as the size has
  bits;
* ``sort`` ranks the queries among the table's elements, and takes off their
  ranks among themselves;
* ``compare_all`` counts the elements below each query.

Order is that of `jax.numpy.sort`: nan is last and equals itself, and complex
numbers are ordered by their real parts first. The result has the default
integer dtype. Its derivative is zero.

Limits: nothing is unrolled. A size that is a number is left to JAX, and so is a
symbolic one in shard_map, where JAX refuses it: from 0.7 on XLA can't call what
would be exported there, and 0.12 crashes on a loop.

Cost: for a table of n elements log2(n) + 1 steps of a ``while_loop``, of the
size of the queries; a sort of both; or a comparison of each with each.
"""
from __future__ import annotations

from typing import Any

from jax._src import core
from jax._src import dtypes
from jax._src.lax import control_flow
from jax._src.lax import lax
from jax._src.mend import pages
from jax._src import mesh as mesh_lib

_METHODS = ('scan', 'scan_unrolled', 'sort', 'compare_all')


def size(table: Any) -> Any:
  """Returns the size of a one-dimensional table, a number or symbolic."""
  return table.shape[0]


def are_symbolic(table: Any, queries: Any, method: str) -> bool:
  """True if a method needs a size that isn't known.

  Args:
    table: an array of one dimension.
    queries: an array.
    method: that of `jax.numpy.searchsorted`. Only ``sort`` needs the number of
      the queries.
  """
  return is_scanned(table, 'scan') or (
      method == 'sort' and _is_symbolic(queries))


def is_scanned(table: Any, method: str) -> bool:
  """True if a table of a size that isn't known is to be halved.

  Args:
    table: an array of one dimension.
    method: that of `jax.numpy.searchsorted`.
  """
  return method.startswith('scan') and _is_symbolic(table)


def _is_symbolic(x: Any) -> bool:
  mesh = mesh_lib.get_abstract_mesh()
  return not core.is_constant_shape(x.shape) and (
      mesh is None or not mesh._any_axis_manual)


def search(table: Any, queries: Any, side: str, method: str) -> Any:
  """Searches for the places of queries in a sorted table.

  Args:
    table: an array of one dimension, of the dtype of `queries`.
    queries: an array.
    side: ``left`` or ``right``: before or after equal elements.
    method: that of `jax.numpy.searchsorted`.

  Returns:
    The number of the table's elements before each query.

  Raises:
    ValueError: there is no such side or method.
  """
  if side not in ('left', 'right') or method not in _METHODS:
    raise ValueError(
        "jax.numpy.searchsorted: expected side 'left' or 'right' and a method "
        f'of {_METHODS}, got {side!r} and {method!r}.' +
        pages.see('ahead_of_time.md#what-can-be-lowered'))
  table, queries = lax.stop_gradient(table), lax.stop_gradient(queries)
  by = {'sort': _by_sorting, 'compare_all': _by_counting}.get(method, _halved)
  return by(table, queries, side, dtypes.canonicalize_dtype(int))


def _halved(table: Any, queries: Any, side: str, dtype: Any) -> Any:
  before = lax._sort_le_comparator if side == 'left' else (
      lax._sort_lt_comparator)

  def halve(_, ends):
    low, high = ends  # the place is after low, or 0, and high at most
    middle = low + (high - low) // 2
    is_left = before(queries, table[middle])
    return (lax.select(is_left, low, middle), lax.select(is_left, middle, high))

  n = lax.convert_element_type(core.dimension_as_value(table.shape[0]), dtype)
  if _may_be_empty(table):  # which nothing can be read from, in no steps either
    table = lax.pad(table, lax.full((), 0, table.dtype), [(0, 1, 0)])
  bits = dtypes.iinfo(dtype).bits - lax.clz(n)
  ends = (lax.full(queries.shape, 0, dtype), lax.broadcast(n, queries.shape))
  return control_flow.fori_loop(0, bits, halve, ends)[1]


def _may_be_empty(table: Any) -> bool:
  try:
    return not table.shape[0] >= 1
  except core.InconclusiveDimensionOperation:
    return True


def _by_counting(table: Any, queries: Any, side: str, dtype: Any) -> Any:
  before = lax._sort_lt_comparator if side == 'left' else (
      lax._sort_le_comparator)
  shape = (*table.shape, *queries.shape)
  return before(
      lax.broadcast_in_dim(table, shape, (0,)),
      lax.broadcast(queries, table.shape)).sum(axis=0, dtype=dtype)


def _by_sorting(table: Any, queries: Any, side: str, dtype: Any) -> Any:
  flat = lax.reshape(queries, (queries.size,))
  both = (flat, table) if side == 'left' else (table, flat)
  ranks = _ranks(lax.concatenate(both, 0), dtype)
  ranks = ranks[:flat.shape[0]] if side == 'left' else ranks[table.shape[0]:]
  return lax.reshape(ranks - _ranks(flat, dtype), queries.shape)


def _ranks(x: Any, dtype: Any) -> Any:
  """The place of each element when all are sorted, equal ones in order."""
  places = lax.iota(dtype, x.shape[0])
  _, order = lax.sort_key_val(x, places)
  return lax.full(x.shape, 0, dtype).at[order].set(places)
