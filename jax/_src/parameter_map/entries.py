# SPDX-License-Identifier: Apache-2.0
"""Parameters and results of an entry computation.

`Parameter` and `Result` are the entries of the maps in `map`, and
`LazySequence` is what those maps have in common: entries are made when they are
looked at, since a runtime that only wants the indices of ten thousand arguments
needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import dataclasses
from typing import Any

import numpy as np

from jax._src import core
from jax._src import dtypes
from jax._src.mend import pages


class _Entry:
  """A frozen dataclass that prints only what it has to say."""

  def __repr__(self):
    said = [f'{f.name}={getattr(self, f.name)!r}'
            for f in dataclasses.fields(self)
            if f.repr and getattr(self, f.name) is not f.default]
    return f"{type(self).__name__}({', '.join(said)})"


@dataclasses.dataclass(frozen=True, repr=False)
class Parameter(_Entry):
  """A parameter of the entry computation, and what feeds it.

  Attributes:
    number: the parameter's position.
    kind: ``"argument"``, or for what the caller doesn't pass ``"constant"``,
      ``"dimension"``, ``"platform_index"``, ``"token"``, ``"ref"`` (a mutable
      array that the function closes over) or ``"captured"`` (a value of the
      trace that the function was lowered in).
    aval: the shape and dtype as the function sees them; for a random key, its
      key type. Symbolic where the function was lowered with symbolic shapes.
    arg_index: for an argument, its index among the leaves of
      ``(args, kwargs)``.
    path: for an argument, where it is: ``args[1]['w']``, ``kwargs['x']``. As
      everywhere in :mod:`jax.stages`, static arguments are not counted.
    name: the argument's name in the function's signature if it is known, the
      dimension variable, or the effect that a token orders.
    donated: whether the runtime may take over the buffer for a result.
    value: a constant's value; a ref itself.
  """
  number: int
  kind: str
  aval: Any
  arg_index: int | None = None
  path: str | None = None
  name: str | None = None
  donated: bool = False
  value: Any = dataclasses.field(default=None, compare=False, repr=False)

  @property
  def physical_aval(self) -> core.ShapedArray:
    """The shape and dtype of the array to hand over.

    Other than `aval` for a random key (its ``uint32`` data), for a ``float0``
    array (``bool``), for a mutable array (its contents) and for a token (an
    empty ``bool`` array).
    """
    aval = getattr(self.aval, 'inner_aval', self.aval)
    if self.kind == 'token':
      return core.ShapedArray((0,), np.dtype(bool))
    if aval.dtype == dtypes.float0:
      return core.ShapedArray(aval.shape, np.dtype(bool))
    return core.physical_aval(aval)


@dataclasses.dataclass(frozen=True, repr=False)
class Result(_Entry):
  """A result of the entry computation, and what it is.

  Attributes:
    number: the result's position.
    kind: ``"output"`` of the function, ``"token"``, or ``"ref"``: the final
      contents of a mutable array.
    aval: the shape and dtype as the function sees them.
    out_index: for an output, its index among the output's leaves.
    path: for an output, where it is: ``result[0]['loss']``.
    forwarded_from: number of the parameter that this result is, handed through
      untouched; None if it is computed.
    aliases: number of the donated parameter whose buffer this result may take
      over.
    updates: for a ref, number of the parameter that held its contents before.
  """
  number: int
  kind: str
  aval: Any
  out_index: int | None = None
  path: str | None = None
  forwarded_from: int | None = None
  aliases: int | None = None
  updates: int | None = None


class LazySequence(Sequence):
  """An immutable sequence whose entries are made by `_entry(number)`."""

  def __getitem__(self, index):
    numbers = range(len(self))
    if isinstance(index, slice):
      return tuple(self._entry(n) for n in numbers[index])
    try:
      number = numbers[index]
    except IndexError:
      raise IndexError(f'{type(self).__name__} has {len(self)} entries: '
                       f'expected an index below that, got {index}.' +
                       pages.see('parameter_map.md#parameters')) from None
    return self._entry(number)

  def __iter__(self) -> Iterator:
    return (self._entry(n) for n in range(len(self)))

  def __eq__(self, other):
    if type(other) is not type(self):
      return NotImplemented
    return tuple(self) == tuple(other)

  def __hash__(self):
    return hash((type(self), len(self)))

  def __repr__(self):
    lines = ''.join(f'\n  {e!r},' for e in self)
    return f'{type(self).__name__}([{lines}{lines and chr(10)}])'

  def _entry(self, number: int):
    raise NotImplementedError
