# SPDX-License-Identifier: Apache-2.0
"""Compares the values that two programs return."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import importlib
from typing import Any

from jax_mend import values

# Of float64, float32, float16 and bfloat16: relative, and to the largest.
_TOLERANCES = {"float64": 1e-10, "complex128": 1e-10, "float32": 1e-5,
               "complex64": 1e-5, "float16": 1e-2, "bfloat16": 3e-2}
_BLOCK = 1 << 20  # elements


@dataclasses.dataclass(frozen=True)
class Tolerance:
  """The differences that count as none: given, or the dtype's own."""
  relative: float | None = None
  absolute: float | None = None

  def allowed(self, np: Any, stock: Any, dtype: str) -> Any:
    """The difference that each element may have."""
    own = _TOLERANCES.get(dtype, 0.)
    relative = own if self.relative is None else self.relative
    size = np.abs(stock)
    absolute = self.absolute
    if absolute is None:
      absolute = own * size[np.isfinite(size)].max(initial=0.)
    return absolute + relative * size


@dataclasses.dataclass
class Difference:
  """The difference of all values that were compared.

  Attributes:
    unequal: whether any bit differs.
    beyond: whether one is beyond the tolerance, or can't be compared.
    absolute: the largest difference of values, and `relative` to the value.
    where: the call, result and device that have it.
  """
  unequal: bool = False
  beyond: bool = False
  absolute: float = 0.
  relative: float = 0.
  where: str = ""

  def add(self, where: str, absolute: float = 0., relative: float = 0.,
          beyond: bool = True) -> None:
    if (beyond, absolute) > (self.beyond, self.absolute) or not self.unequal:
      self.where = where
    self.unequal, self.beyond = True, self.beyond or beyond
    self.absolute = max(self.absolute, absolute)
    self.relative = max(self.relative, relative)


class Values:
  """The values that runs have kept.

  Args:
    folders: of the runs.
    tolerance: the differences of values that count as none.
  """

  def __init__(self, folders: Sequence[str], tolerance: Tolerance):
    self._kept = {name: row for folder in folders
                  for name, row in values.kept(folder).items()}
    self._tolerance = tolerance

  def compare(self, found: Difference, where: str, one: Sequence[Any],
              two: Sequence[Any]) -> None:
    """Compares a result, by its parts on the devices or as a whole.

    A value that is there once and one that each device has for itself are the
    same if each device has the same.
    """
    if one == two or [_on(x) for x in one] == [_on(x) for x in two]:
      return
    if [x[:1] + [_shape(x)] for x in one] == [x[:1] + [_shape(x)] for x in two]:
      parts = [(x, y) for x, y in zip(one, two) if x[2] != y[2]]
      some = "" if len(parts) == len(one) else ", device " + ", ".join(
          str(x[0]) for x, _ in parts[:4])
      if not some and len({x[2] for x in one}) > len({y[2] for y in two}) == 1:
        where += " (the devices differ on stock)"
      for x, y in {(x[2], y[2]) for x, y in parts}:
        self._arrays(found, where + some, self._array(x), self._array(y),
                     (x, y))
    else:
      self._arrays(found, f"{where}, laid out otherwise", self._whole(one),
                   self._whole(two), ("", ""))

  def _array(self, name: str) -> Any:
    return values.read(self._kept[name]) if name in self._kept else None

  def _whole(self, parts: Sequence[Any]) -> Any:
    """The array of which each device has a part, if all parts are kept."""
    np = importlib.import_module("numpy")
    arrays = [self._array(name) for _, _, name in parts]
    if not arrays or any(a is None or a.ndim != len(index) for a, (_, index, _)
                         in zip(arrays, parts)):
      return None
    starts = [[start for start, _ in index] for _, index, _ in parts]
    shape = [max(s + n for s, n in zip(*sides)) for sides in zip(
        zip(*starts), zip(*(a.shape for a in arrays)))]
    out = np.zeros(shape, arrays[0].dtype)
    for start, array in zip(starts, arrays):
      out[tuple(slice(s, s + n) for s, n in zip(start, array.shape))] = array
    return out

  def _arrays(self, found: Difference, where: str, one: Any, two: Any,
              names: tuple[str, str]) -> None:
    np = importlib.import_module("numpy")
    if one is None or two is None:
      found.add(f"{where}: {self._summary(names)}")
    elif one.shape != two.shape or one.dtype != two.dtype:
      found.add(f"{where}: {one.dtype}{list(one.shape)}, mended "
                f"{two.dtype}{list(two.shape)}")
    else:
      wide = np.complex128 if one.dtype.kind == "c" else np.float64
      x, y = one.reshape(-1), two.reshape(-1)
      for start in range(0, max(x.size, 1), _BLOCK):
        found.add(where, *self._block(
            np, x[start:start + _BLOCK].astype(wide),
            y[start:start + _BLOCK].astype(wide), str(one.dtype)))

  def _block(self, np: Any, x: Any, y: Any,
             dtype: str) -> tuple[float, float, bool]:
    """The largest differences, and whether one is beyond the tolerance."""
    with np.errstate(all="ignore"):
      off = np.abs(x - y)
      off = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0., off)
      off = np.where(np.isnan(off), np.inf, off)
      size = np.maximum(np.abs(x), np.abs(y))
      allowed = self._tolerance.allowed(np, x, dtype)
      relative = np.where(off > 0, off / size, 0.)
      beyond = (off > 0) & ~(off <= allowed)  # of nan, too
    relative = np.where(np.isnan(relative), np.inf, relative)
    return (float(off.max(initial=0.)), float(relative.max(initial=0.)),
            bool(beyond.any()))

  def _summary(self, names: tuple[str, str]) -> str:
    """The largest and the norm of values too large to be kept."""
    if not any(names):
      return "not compared"
    known = [self._kept.get(name, {}) for name in names]
    if not any("norm" in k for k in known):  # also if it isn't the same twice
      return "other digests"
    texts = [f"largest {k['largest']:.6g}, norm {k['norm']:.6g}"
             if "norm" in k else "digest" for k in known]
    return f"beyond --store: {texts[0]}; mended {texts[1]}"


def _on(part: Sequence[Any]) -> tuple[int, str]:
  return part[0], part[2]


def _shape(part: Sequence[Any]) -> str:
  return part[2].partition(":")[0]
