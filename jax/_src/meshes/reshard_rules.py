# SPDX-License-Identifier: Apache-2.0
"""Specs that operations must have over Explicit axes, by the primitive's name.

A rule gives the operands' specs, of their types and the parameters: None for
one that stays as it is; None at all where several placements are possible.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

Spec = tuple[Any, ...]


def spec_of(aval) -> Spec:
  """The spec of an array's type, with an entry for each dimension."""
  spec = tuple(aval.sharding.spec)
  return spec + (None,) * (len(aval.shape) - len(spec))


def is_placed(aval) -> bool:
  """True if the type says where the array is."""
  return is_array(aval) and not aval.sharding.mesh.empty


def is_array(aval) -> bool:
  """True of an array's type; not of a scalar's, a reference's or a token's."""
  return (hasattr(aval, 'sharding') and bool(aval.shape)
          and not hasattr(aval, 'inner_aval'))


def names_of(spec: Spec) -> list:
  return [n for s in spec if s is not None
          for n in (s if isinstance(s, tuple) else (s,))]


def size_of(mesh, entry) -> int:
  return math.prod(mesh.shape[n] for n in names_of((entry,)))


def without(spec: Spec, dims) -> Spec:
  """The spec of an array that is whole along ``dims``."""
  dims = {d % len(spec) for d in dims}
  return tuple(None if n in dims else s for n, s in enumerate(spec))


def common_spec(a: Spec, b: Spec) -> Spec | None:
  """The spec that both fit: of two entries one is None, or both are equal."""
  if len(a) != len(b) or any(
      None not in (x, y) and x != y for x, y in zip(a, b)):
    return None
  return tuple(y if x is None else x for x, y in zip(a, b))


def common_spec_of(avals) -> Spec | None:
  specs = [spec_of(a) for a in avals if is_placed(a)]
  spec: Spec | None = specs[0] if specs else None
  for s in specs[1:]:
    spec = None if spec is None else common_spec(spec, s)
  return spec


def _alike(avals, params=None) -> list | None:
  """The spec that all placed operands have in common, for each of them."""
  spec = common_spec_of(avals)
  return None if spec is None else [
      spec if is_placed(a) else None for a in avals]


def _dot_general(avals, params):
  """Batch dimensions that one side is spread along, and the other isn't."""
  lhs, rhs = (list(spec_of(a)) for a in avals)
  _, batch = params['dimension_numbers']
  for l, r in zip(*batch):
    both = common_spec((lhs[l],), (rhs[r],))
    if both is None:
      return None
    lhs[l], = rhs[r], = both
  return [tuple(lhs), tuple(rhs)]


def _update(avals, params):
  operand, _, *indices = avals
  return [spec_of(operand)] * 2 + [None for _ in indices]


def _sort(avals, params):
  specs = _alike(avals)
  return specs and [s and without(s, [params['dimension']]) for s in specs]


def _whole_along(*names: str) -> Callable:
  """The rule of an operation along dimensions that must be whole."""
  def rule(avals, params):
    dims = next(params[n] for n in names if n in params)
    dims = dims if isinstance(dims, (tuple, list)) else (dims,)
    return [without(spec_of(a), dims) if is_placed(a) else None for a in avals]
  return rule


def _tile(avals, params):
  x, = avals
  return [without(spec_of(x), [n for n, r in enumerate(params['reps'])
                                if r != 1])]


def _divisible(out_shape: Callable[[Any, dict], Sequence[Sequence[int]]]):
  """The rule of an operation whose results must be divisible as well."""
  def rule(avals, params):
    x, *others = avals
    spec, mesh = spec_of(x), x.sharding.mesh
    dims = [n for shape in out_shape(x, params) for n, size in enumerate(shape)
            if size % size_of(mesh, spec[n])]
    return [without(spec, dims), *(None for _ in others)]
  return rule


def _sliced(x, params):
  strides = params['strides'] or (1,) * len(x.shape)
  return [[-(-(b - a) // s) for a, b, s in zip(
      params['start_indices'], params['limit_indices'], strides)]]


def _padded(x, params):
  return [[lo + hi + n + max(n - 1, 0) * mid for n, (lo, hi, mid) in zip(
      x.shape, params['padding_config'])]]


def _split(x, params):
  return [[size if n == params['axis'] else whole
           for n, whole in enumerate(x.shape)] for size in params['sizes']]


def _matrices(*ranks: int) -> Callable:
  """The rule of an operation on batches of whole matrices or vectors."""
  def rule(avals, params):
    batches = [spec_of(a)[:len(a.shape) - r] for a, r in zip(avals, ranks)]
    batch: Spec | None = batches[0]
    for b in batches[1:]:
      batch = None if batch is None else common_spec(batch, b)
    return None if batch is None else [batch + (None,) * r for r in ranks]
  return rule


def _triangular_solve(avals, params):
  a, b = map(spec_of, avals)
  batch = common_spec(a[:-2], b[:-2])
  if batch is None:
    return None
  left = params['left_side']
  a = without(a, [-2 + (left ^ params['transpose_a'])])
  b = without(b, [-2 + (not left)])
  return [batch + a[-2:], batch + b[-2:]]


def _gathered(avals, params):
  """The spec of what is gathered, each element from within its batch.

  Dimensions of the operand may be spread if they are whole in each slice, or of
  a batch that the indices have, too.
  """
  operand, indices = avals
  spec, where = list(spec_of(operand)), list(spec_of(indices))
  dims = params['dimension_numbers']
  for d, n in zip(dims.operand_batching_dims, dims.start_indices_batching_dims):
    both = common_spec((spec[d],), (where[n],))
    if both is None:
      return None
    where[n], spec[d] = both[0], None
  gone = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
  if where.pop() is not None or any(
      spec[d] is not None and (d in gone or d in dims.start_index_map
                               or params['slice_sizes'][d] != n)
      for d, n in enumerate(operand.shape)):
    return None
  kept = iter([s for d, s in enumerate(spec) if d not in gone])
  batch = iter(where)
  rank = len(dims.offset_dims) + len(where)
  return tuple(next(kept if d in dims.offset_dims else batch)
               for d in range(rank))


def _scattered(avals, params):
  """The operand's spec, joined with the updates' of windows and batches."""
  operand, _, updates = avals
  spec, where, given = map(list, map(spec_of, avals))
  dims = params['dimension_numbers']
  windows = dims.update_window_dims
  rest = [d for d in range(len(given)) if d not in windows]
  batch = dict(zip(dims.operand_batching_dims,
                   dims.scatter_indices_batching_dims))
  kept = dict(zip([d for d in range(len(spec)) if d not in batch
                   and d not in dims.inserted_window_dims], windows))
  for d, n in enumerate(operand.shape):
    entries = [(spec[d],)]
    if d in batch:
      entries += [(where[batch[d]],), (given[rest[batch[d]]],)]
      where[batch[d]] = given[rest[batch[d]]] = None
    elif d in kept:
      entries.append((given[kept[d]],))
      given[kept[d]] = None
    both: Spec | None = (None,)
    for e in entries:
      both = None if both is None else common_spec(both, e)
    if both is None or both[0] is not None and d not in batch and (
        d not in kept or d in dims.scatter_dims_to_operand_dims
        or updates.shape[kept[d]] != n):
      return None
    spec[d], = both
  return None if any(s is not None for s in where + given) else tuple(spec)


# Of operations whose operands stay as they are: the one spec of the result.
RESULTS: dict[str, Callable[[Sequence[Any], dict[str, Any]], Spec | None]] = {
    'gather': _gathered,
    **{n: _scattered for n in ('scatter', 'scatter-add', 'scatter_add',
                               'scatter-mul', 'scatter_mul', 'scatter-min',
                               'scatter_min', 'scatter-max', 'scatter_max')}}

RULES: dict[str, Callable[[Sequence[Any], dict[str, Any]], list | None]] = {
    'dot_general': _dot_general,
    'concatenate': _alike, 'stack': _alike, 'select_n': _alike, 'clamp': _alike,
    'dynamic_update_slice': _update,
    'sort': _sort,
    **{f'cum{n}': _whole_along('axis')
       for n in ('sum', 'prod', 'max', 'min', 'logsumexp')},
    'top_k': _whole_along('axis'),
    'approx_top_k': _whole_along('reduction_dimension'),
    'unstack': _whole_along('axis'),
    'tile': _tile,
    'slice': _divisible(_sliced),
    'dynamic_slice': _divisible(lambda x, p: [p['slice_sizes']]),
    'pad': _divisible(_padded),
    'split': _divisible(_split),
    'cholesky': _matrices(2), 'eig': _matrices(2), 'eigh': _matrices(2),
    'lu': _matrices(2), 'qr': _matrices(2), 'geqrf': _matrices(2),
    'svd': _matrices(2), 'schur': _matrices(2), 'hessenberg': _matrices(2),
    'householder_product': _matrices(2, 1),
    'triangular_solve': _triangular_solve,
}
