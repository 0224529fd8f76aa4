# SPDX-License-Identifier: Apache-2.0
"""Reads of and writes to a ref under vmap, along any batch axis.

A ref is indexed as NumPy indexes an array: what arrays index stands where the
first of them does if they are neighbours, and else in front. Under ``vmap`` an
array that counts the examples joins them, at the ref's batch axis, and moves
that block. From 0.8.0 to 0.10.0 JAX loses it (``ref[0] = x`` is refused, or
writes to other elements where the sizes fit), and up to 0.11.0 a whole value is
written along its own batch axis, not the ref's.

With s the number of slices before the block, in the new indexing and in the
old, what the new one gives is transposed to have the batch in front and the
block where it was; what is written, the other way round. Indexing by slices
and numbers alone needs no array of examples: the batch is one more slice.

Cost: a transpose where the block moves, none otherwise.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

from jax._src.interpreters import batching
from jax._src import tree_util
import numpy as np


class _Batched(NamedTuple):
  """An indexing of a batched ref.

  Attributes:
    flat: the leaves of its indexer.
    tree: their structure.
    axis: the batch axis of what it gives.
    order: the transposition that puts it there; None if it is there.
  """
  flat: Sequence[Any]
  tree: Any
  axis: int
  order: tuple[int, ...] | None

  def read(self, x):
    """The result of the indexing, with the batch at its axis."""
    return x if self.order is None else _transpose(x, self.order)

  def written(self, x):
    """The value to be written, as the indexing has it."""
    if self.order is None:
      return x
    return _transpose(x, tuple(map(int, np.argsort(self.order))))


def _transpose(x, order):
  from jax._src.lax import lax  # it imports batching
  return lax.transpose(x, order)


def along_the_ref(rule: Callable[..., Any]) -> Callable[..., Any]:
  """Has what is written to a whole ref batched along the ref's axis.

  Args:
    rule: the batching rule of a write: of the batch, the ref, the value and
      indices, their batch axes, and the indices' structure.
  """
  @functools.wraps(rule)
  def batch(axis_data, args, dims, *, tree):
    if (len(args) == 2 and None not in dims and dims[0] != dims[1]
        and not tree_util.tree_unflatten(tree, ())):
      args = (args[0], batching.moveaxis(args[1], dims[1], dims[0]))
      dims = (dims[0], dims[0])
    return rule(axis_data, args, dims, tree=tree)
  return batch


def reading(rule: Callable[..., Any]) -> Callable[..., Any]:
  """Reads a batched ref at an index, by the rule only where there is none."""
  @functools.wraps(rule)
  def batch(args, dims, *, tree):
    size, = {np.shape(x)[d] for x, d in zip(args, dims) if d is not None}
    new = _indexing(size, args[0], dims[0], args[1:], dims[1:], tree)
    if new is None:
      return rule(args, dims, tree=tree)
    from jax._src.state import primitives  # it imports this
    out = primitives.get_p.bind(args[0], *new.flat, tree=new.tree)
    return new.read(out), new.axis
  return batch


def writing(name: str) -> Callable[..., Any]:
  """Writes to a batched ref at an index, by the rule only where there is none.

  Args:
    name: the name of the primitive, ``swap`` or ``addupdate``.
  """
  def decorate(rule):
    @functools.wraps(rule)
    def batch(axis_data, args, dims, *, tree):
      ref, x, *flat = args
      new = None if dims[0] is None else _indexing(
          axis_data.size, ref, dims[0], flat, dims[2:], tree)
      if new is None:
        return rule(axis_data, args, dims, tree=tree)
      if dims[1] is None:
        x = batching.broadcast(x, axis_data.size, new.axis,
                               axis_data.explicit_mesh_axis)
      else:
        x = batching.moveaxis(x, dims[1], new.axis)
      from jax._src.state import primitives  # it imports this
      prim = getattr(primitives, f'{name}_p')
      out = prim.bind(ref, new.written(x), *new.flat, tree=new.tree)
      return ([], []) if prim.multiple_results else (new.read(out), new.axis)
    return batch
  return decorate


def _indexing(size, ref, dim, flat, flat_dims, tree) -> _Batched | None:
  """The indexing of a batched ref; None if it isn't by one index.

  Args:
    size: the size of the batch.
    ref: the ref.
    dim: its batch axis, or None.
    flat: the leaves of its indices.
    flat_dims: their batch axes.
    tree: their structure.
  """
  from jax._src.state import indexing  # it imports this
  indexers = tree_util.tree_unflatten(tree, flat)
  if len(indexers) != 1 or not isinstance(indexers[0], indexing.NDIndexer):
    return None
  old = indexers[0]
  dims = tree_util.tree_unflatten(tree, flat_dims)[0].indices
  slices = [isinstance(i, indexing.Slice) for i in old.indices]
  if any(s and tree_util.tree_leaves(d) for s, d in zip(slices, dims)):
    return None  # a slice that begins elsewhere in each example: refused
  batched = any(d is not None for s, d in zip(slices, dims) if not s)
  if not batched and not old.int_indexer_shape:
    indices = list(old.indices)
    indices.insert(dim, indexing.Slice(0, size))
    return _Batched(*_flat(indices, ref, ()), sum(slices[:dim]), None)
  shape = (size, *old.int_indexer_shape)
  indices = [i if s else _index(i, d, shape)
             for i, s, d in zip(old.indices, slices, dims)]
  here = _place(slices)
  if dim is not None:
    indices.insert(dim, _index(np.arange(size, dtype=np.int32), 0, shape))
    slices.insert(dim, False)
  return _Batched(*_flat(indices, ref, shape),
                  *_order(sum(slices), len(shape), _place(slices), here))


def _flat(indices, ref, shape) -> tuple[Sequence[Any], Any]:
  from jax._src.state import indexing  # it imports this
  indexer: Any = indexing.NDIndexer  # upstream's, in which a method lacks
  return tree_util.tree_flatten(
      (indexer(tuple(indices), ref.shape, shape, validate=True),))


def _place(slices: Sequence[bool]) -> int:
  """The number of slices before what arrays index; 0 if it is in front."""
  others = [n for n, s in enumerate(slices) if not s]
  if not others or others[-1] - others[0] >= len(others):
    return 0
  return others[0]


def _index(x, dim, shape):
  """An index of each example: batched in front, of a shape that all have."""
  from jax._src.lax import lax  # it imports batching
  x = batching.moveaxis(x, dim, 0) if dim else x
  rank = np.ndim(x)
  if dim is not None:
    axes = (0, *range(len(shape) - rank + 1, len(shape)))
  else:
    axes = tuple(range(len(shape) - rank, len(shape)))
  return lax.broadcast_in_dim(x, shape, axes)


def _order(slices: int, rank: int, place: int, wanted: int):
  """The batch axis of what is indexed, and its transposition.

  Args:
    slices: the number of slices.
    rank: that of the arrays, whose first axis is the batch.
    place: the number of slices before the arrays.
    wanted: before them, without the batch.
  """
  others = [*range(place), *range(place + rank, slices + rank)]
  block = range(place + 1, place + rank)
  order = (place, *others[:wanted], *block, *others[wanted:])
  if list(order[1:]) == sorted(order[1:]):
    return place, None
  return 0, order
