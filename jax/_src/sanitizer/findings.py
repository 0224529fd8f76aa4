# SPDX-License-Identifier: Apache-2.0
"""Findings: what devices send when they differ, and the message of the first.

A device sends nothing until the values that are compared at a flush differ;
then every device that takes part sends which of them do, where it stands in the
mesh and in the loops, and its own values. What was first in the program's order
is kept: the order of the sites, and of the iterations of the loops around them.
Nothing is computed in the callback; the values are read when the program has
ended, so that no device waits for another.
"""
from __future__ import annotations

from collections.abc import Sequence
import threading
from typing import Any, NamedTuple

from jax._src.sanitizer import sites as sites_lib
import numpy as np


class ReplicationError(RuntimeError):
  """Devices differ in a value that is the same by its type or spec."""


class Flush(NamedTuple):
  """Values that are compared at once.

  Attributes:
    number: in the program's order, with the loops' numbers.
    sites: of the values.
    loops: around them, from the outside.
    names: of the mesh axes whose coordinates devices send.
  """
  number: int
  sites: tuple[sites_lib.Site, ...]
  loops: tuple[sites_lib.Loop, ...]
  names: tuple


class Finding(NamedTuple):
  """The message of one device."""
  flush: Flush
  bad: Any
  coordinates: Any
  counters: Any
  values: tuple


class Findings:
  """The findings of one run; keeps those that are first in the program."""

  def __init__(self):
    self._lock = threading.Lock()
    self._first: tuple | None = None
    self._kept: list[Finding] = []

  def clear(self) -> None:
    with self._lock:
      self._first, self._kept = None, []

  def add(self, flush: Flush, bad, coordinates, counters, *values) -> None:
    """Takes what a device sent; called by the runtime."""
    steps = [int(c) for c in counters[1:]]
    key = (*((l.number, c) for l, c in zip(flush.loops, steps)),
           (flush.number, 0))
    with self._lock:
      if self._first is None or key < self._first:
        self._first, self._kept = key, []
      if key == self._first:
        self._kept.append(Finding(flush, bad, coordinates, steps, values))

  def error(self, rtol: float | None,
            notes: Sequence[str]) -> ReplicationError | None:
    """The error that tells the first difference; None if there is none."""
    with self._lock:
      kept = [f._replace(bad=np.asarray(f.bad),
                         coordinates=np.asarray(f.coordinates))
              for f in self._kept]
    if not kept:
      return None
    n = min(int(np.argmax(f.bad)) for f in kept if f.bad.any())
    group = [f for f in kept if f.bad[n]]
    return ReplicationError(_message(n, group, rtol, notes))


def _message(n: int, group: list[Finding], rtol: float | None,
             notes: Sequence[str]) -> str:
  flush = group[0].flush
  site = flush.sites[n]
  at = [dict(zip(flush.names, map(int, f.coordinates[1:]))) for f in group]
  values = [np.asarray(f.values[n]) for f in group]
  axis, members = _along(site.axes, at, values, rtol)
  lines = [f'jax.debug.check_replication: {site.name} should be the same along '
           f'{axis!r} and is not.',
           f'  {site.where}: {site.text}']
  for loop, count in zip(reversed(flush.loops), reversed(group[0].counters)):
    lines.append(f'  in iteration {count} of the {loop.text}')
  lines += _values(axis, [at[m] for m in members],
                   [values[m] for m in members], rtol)
  lines += _operands(site, axis)
  if notes:
    lines.append('  Not compared, as nothing says along which axes it may '
                 'differ: ' + '; '.join(notes))
  return '\n'.join(lines)


def _key(a: np.ndarray) -> bytes:
  """The bits of an array, nan being one value."""
  if a.dtype.kind == 'c':
    return _key(a.real) + _key(a.imag)
  if a.dtype.kind == 'f':
    a = np.where(np.isnan(a), np.array(np.nan, a.dtype), a)
  return np.ascontiguousarray(a).tobytes()


def _along(axes: tuple, at: list[dict], values: list[np.ndarray],
           rtol: float | None) -> tuple[Any, list[int]]:
  """An axis along which values differ, and the devices of one row of it."""
  for axis in axes:
    rows: dict[tuple, list[int]] = {}
    for n, place in enumerate(at):
      rest = tuple((a, c) for a, c in place.items() if a != axis)
      rows.setdefault(rest, []).append(n)
    for _, members in sorted(rows.items()):
      members.sort(key=lambda n: at[n][axis])
      first = values[members[0]]
      if any(_unlike(first, values[m], rtol).any() for m in members[1:]):
        return axis, members
  order = sorted(range(len(at)), key=lambda n: tuple(at[n].values()))
  return axes[0] if len(axes) == 1 else axes, order


def _unlike(a: np.ndarray, b: np.ndarray, rtol: float | None) -> np.ndarray:
  """Marks the elements in which two arrays differ."""
  if rtol is not None and a.dtype.kind in 'fc':
    return ~np.isclose(a, b, rtol=rtol, atol=0, equal_nan=True)
  bits = lambda x: np.frombuffer(_key(x), np.uint8).reshape(
      -1 if x.dtype.kind != 'c' else 2, x.size or 1, x.dtype.itemsize // (
          1 if x.dtype.kind != 'c' else 2))
  return (bits(a) != bits(b)).any(axis=(0, 2)).reshape(a.shape)


def _values(axis, at: list[dict], values: list[np.ndarray],
            rtol: float | None) -> list[str]:
  """The element that differs first, on the devices, by its values."""
  differ = np.zeros(values[0].shape, bool)
  for value in values[1:]:
    differ |= _unlike(values[0], value, rtol)
  if not differ.any():
    return []
  element = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(differ)))
  held: dict[str, list] = {}
  for place, value in zip(at, values):
    text = _number(np.atleast_1d(value)[element])
    held.setdefault(text, []).append(place[axis] if axis in place
                                     else tuple(place.values()))
  text = '; '.join(f"{v} on {axis}={','.join(map(str, places))}"
                   for v, places in held.items())
  rest = {a: c for a, c in at[0].items() if a != axis}
  if rest and all({a: p[a] for a in rest} == rest for p in at):
    text += ', where ' + ', '.join(f'{a}={c}' for a, c in rest.items())
  if differ.ndim:
    text = (f'{differ.sum()} of {differ.size} elements differ, first '
            f'{list(element)}: {text}')
  return [f'  {text}']


def _number(x: Any) -> str:
  """A number with all digits that tell it from others."""
  if isinstance(x, np.floating) and (not x or 1e-4 <= abs(float(x)) < 1e6):
    return np.format_float_positional(x, trim='-')
  return str(x)


def _operands(site: sites_lib.Site, axis) -> list[str]:
  """Says what is known of the operands of a value."""
  if site.operands is None:
    return []
  if not site.operands:
    return ['  It has no operands: devices first differ here.']
  vary = [o.text for o in site.operands if axis in o.axes]
  unseen = [o.text for o in site.operands
            if axis not in o.axes and not o.compared]
  if not vary and not unseen:
    return ['  Its operands agree: devices first differ here.']
  lines = []
  if vary:
    lines.append(f"  Its operands that vary along {axis!r} by their types: "
                 f"{', '.join(vary)}; what it makes of them should not.")
  if unseen:
    lines.append(f"  Operands that were not compared: {', '.join(unseen)}.")
  return lines
