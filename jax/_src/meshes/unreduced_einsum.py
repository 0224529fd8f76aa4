# SPDX-License-Identifier: Apache-2.0
"""An einsum of three or more operands with an unreduced result.

``jnp.einsum`` makes several contractions of these, all over Auto axes, and only
their last result is said to be unreduced. XLA's partitioner leaves a sum undone
in the last contraction alone, and if both its operands are split along what it
sums. Otherwise it ended the process (one of them isn't split), or each device
had the whole sum, which was added up once more when the result was reduced.

Both are refused here, by the operands' shardings, before anything is traced. An
intermediate result is split along a dimension if an operand that it is made of
is. Along an axis with one device a sum is whole, and all is as it was. So it is
where each contraction is executed for itself, from 0.12 on.

Cost: nothing without an unreduced ``out_sharding``.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import pages
from jax._src.mend import release_types
from jax._src.mend import traces

_typeof = release_types.typeof()


class _Value(NamedTuple):
  """An operand of a contraction: the numbers of those of einsum that it has."""
  places: tuple[int, ...]
  names: dict[int, str]  # of operands of einsum, by number: their dimensions


def check(operands: Sequence[Any], contractions: Sequence[tuple],
          out_sharding: Any) -> None:
  """Refuses an unreduced result that the contractions don't leave.

  Args:
    operands: those of the einsum.
    contractions: for each, the positions of its operands among those that are
      left, the names of what it sums, and its formula.
    out_sharding: the result's sharding, or None.

  Raises:
    ShardingTypeError: if the last contraction doesn't sum what both its
      operands split along an axis that the result is unreduced over.
  """
  axes = frozenset() if out_sharding is None else out_sharding.spec.unreduced
  if not axes or len(contractions) < 2:
    return
  specs = [_typeof(x).sharding.spec for x in operands]
  last = _last(len(operands), contractions)
  for axis in sorted(axes):
    if out_sharding.mesh.shape[axis] > 1:
      _check_axis(axis, specs, operands, *last)


def check_staged(operands: Sequence[Any], contractions: Sequence[tuple],
                 out_sharding: Any) -> None:
  """`check`, where the contractions are compiled as one program."""
  if traces.is_staged(core.trace_ctx.trace):
    check(operands, contractions, out_sharding)


def _last(count: int, contractions) -> tuple[list[_Value], frozenset, str]:
  """The operands of the last contraction, what it sums, and its formula."""
  left = [_Value((n,), {}) for n in range(count)]
  for places, _, formula in contractions:
    taken = [left.pop(n) for n in places]
    for value, names in zip(taken, formula.split('->')[0].split(',')):
      if len(value.places) == 1:
        value.names[value.places[0]] = names
    left.append(_Value(sum((v.places for v in taken), ()),
                       {k: n for v in taken for k, n in v.names.items()}))
  return taken, *contractions[-1][1:]


def _splits(names: str, spec: Any, axis: str) -> set[str]:
  """The names of the dimensions that a sharding splits along an axis."""
  parts = getattr(spec, 'partitions', spec)
  return {name for name, part in zip(names, parts)
          if part == axis or isinstance(part, tuple) and axis in part}


def _check_axis(axis, specs, operands, taken, summed, formula) -> None:
  splits = [{k: _splits(names, specs[k], axis)
             for k, names in value.names.items()} for value in taken]
  each = [set().union(*found.values()) for found in splits]
  if set.intersection(*each) & summed:
    return
  got = []
  for value in taken:
    for k, names in sorted(value.names.items()):
      got.append(f"operand {k}, '{names}', {_typeof(operands[k]).str_short()} "
                 f'with {specs[k]}')
  raise core.ShardingTypeError(
      'jnp.einsum: out_sharding says that the result is unreduced over '
      f'{axis!r}. Expected: the last contraction, {formula!r}, sums a '
      f'dimension that both of its operands split over {axis!r}. Got: '
      f'{"; ".join(got)}. '
      'Split the other operand too, with jax.sharding.reshard; or write one '
      'einsum for each contraction (jnp.einsum_path lists them), the one that '
      f'sums over {axis!r} last; or leave out unreduced.' +
      pages.see('meshes.md#unreduced-results-of-einsum'))
