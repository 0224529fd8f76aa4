# SPDX-License-Identifier: Apache-2.0
"""Pairs the programs of two runs, and says how each pair differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import dataclasses
import difflib
import importlib
import itertools
from typing import Any

from jax_mend import values
from jax_mend.runs import Program, Run

SAME, CODE, VALUES = "same", "other code, same values", "other values"
ONLY_MENDED, ONLY_STOCK = "only mended", "only stock"
# Of float64, float32, float16 and bfloat16: relative, and to the largest.
_TOLERANCES = {"float64": 1e-10, "complex128": 1e-10, "float32": 1e-5,
               "complex64": 1e-5, "float16": 1e-2, "bfloat16": 3e-2}


@dataclasses.dataclass
class Row:
  """A program of one run or both.

  Attributes:
    kind: one of SAME, CODE, VALUES, ONLY_MENDED and ONLY_STOCK.
    same_code: whether the modules' texts are equal.
    absolute: the largest difference of values, and `relative` to the value.
    note: which call, result and device have it, or what else is to say.
  """
  kind: str
  name: str
  line: str
  test: str = ""
  ordinal: int = 0  # of several programs of one name and line
  same_code: bool = False
  absolute: float = 0.
  relative: float = 0.
  note: str = ""
  patches: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  why: str = ""
  confirmed: bool = False  # without that patch the stock code is back
  proof: str = ""  # the reason why it is confirmed, or not
  again: bool = False  # the stock jax gives other ones each time, too
  follows: bool = False  # one side has ended before, at the row before it

  @property
  def key(self) -> tuple[str, str, str, int]:
    return self.name, self.line, self.test, self.ordinal


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


def pairs(stock: Sequence[Program], mended: Sequence[Program]) -> list[
    tuple[Program | None, Program | None]]:
  """The programs of both runs, in order, alike ones side by side."""
  found: list[tuple[Program | None, Program | None]] = []
  for _, i, j, k, l in difflib.SequenceMatcher(
      None, [p.key for p in stock], [p.key for p in mended],
      autojunk=False).get_opcodes():
    left: list[Program] = list(mended[k:l])
    for program in stock[i:j]:
      other = next((p for p in left if p.key == program.key), None) or next(
          (p for p in left if p.name == program.name), None)
      if other:
        left.remove(other)
      found.append((program, other))
    found += [(None, p) for p in left]
  return found


def unequal(stock: Run, mended: Run) -> set[str]:
  """The values of two runs that are to be compared with others."""
  return {part[2] for a, b in pairs(stock.programs, mended.programs) if a and b
          for at in {*a.calls} & {*b.calls}
          for one, two in zip(a.calls[at], b.calls[at]) if one != two
          for part in (*one, *two)}


def rows(stock: Run, mended: Run, tolerance: Tolerance,
         again: Run | None = None) -> list[Row]:
  """A row for each program of two runs.

  Args:
    stock: one of them.
    mended: the other.
    tolerance: the differences of values that count as none.
    again: another run on the stock jax, which has kept values.
  """
  kept = {name: row for run in (stock, mended, again) if run
          for name, row in values.kept(run.folder).items()}
  out: list[Row] = []
  counts: dict[tuple[str, str, str], int] = {}
  for a, b in pairs(stock.programs, mended.programs):
    program = a or b  # the key is stock's, with which others are compared
    assert program
    counts[program.key] = counts.get(program.key, -1) + 1
    row = Row(SAME, program.name, program.line, program.test,
              counts[program.key], patches=b.patches if b else {})
    if a is None or b is None:
      row.kind = ONLY_MENDED if a is None else ONLY_STOCK
      _blame_error(row, stock if a is None else mended)
    else:
      _compare(row, a, b, kept, tolerance)
      _compare_counts(row, len(a.calls), len(b.calls), stock, mended)
      if a.number in stock.open and b.number not in mended.open:
        row.kind, row.note = ONLY_MENDED, "hung on stock" if (
            stock.status is None) else "stock ended within it"
    out.append(row)
  if stock.status != mended.status:
    for row, before in zip(out[:0:-1], out[-2::-1]):
      if before.kind != row.kind or row.kind not in (ONLY_MENDED, ONLY_STOCK):
        break
      row.follows = True
  return out


def _compare_counts(row: Row, on_stock: int, mended: int, one: Run,
                    two: Run) -> None:
  """Tells of calls that one side hasn't made, unless it has ended before."""
  if on_stock == mended or row.kind not in (SAME, CODE):
    return
  row.note = f"called {on_stock} times, mended {mended}"
  if row.same_code and one.status == two.status:
    row.kind = VALUES


def _blame_error(row: Row, lacking: Run) -> None:
  """Says which error, at the program's own line, has kept it from one side."""
  error = lacking.error
  if error and error["line"] == row.line:
    row.note = f"{error['type']}: {error['text']}"


def _compare(row: Row, a: Program, b: Program,
             kept: Mapping[str, Any], tolerance: Tolerance) -> None:
  row.same_code = a.code == b.code
  row.kind = SAME if row.same_code else CODE
  for at in sorted({*a.calls} & {*b.calls}):
    one, two = a.calls[at], b.calls[at]
    if len(one) != len(two):
      row.kind, row.note = VALUES, f"{len(one)} results, not {len(two)}"
    for number, parts in enumerate(zip(one, two)):
      _compare_result(row, f"call {at}, result {number}", *parts, kept,
                      tolerance)


def _compare_result(row: Row, where: str, one: Sequence[Any],
                    two: Sequence[Any], kept: Mapping[str, Any],
                    tolerance: Tolerance) -> None:
  """Compares a result, by its parts on the devices or as a whole."""
  if one == two:
    return
  place = lambda part: (part[0], part[1], part[2].partition(":")[0])
  if [*map(place, one)] == [*map(place, two)]:
    differing = [(x, y) for x, y in zip(one, two) if x[2] != y[2]]
    some = "" if len(differing) == len(one) else ", device " + ", ".join(
        str(x[0]) for x, _ in differing[:4])
    if not some and len({x[2] for x in one}) > len({x[2] for x in two}) == 1:
      where += " (the devices differ on stock)"
    for x, y in {(x[2], y[2]) for x, y in differing}:
      _compare_arrays(row, where + some, _array(x, kept), _array(y, kept),
                      (x, y), kept, tolerance)
  else:
    _compare_arrays(row, f"{where}, laid out otherwise", _whole(one, kept),
                    _whole(two, kept), ("", ""), kept, tolerance)


def _array(name: str, kept: Mapping[str, Any]) -> Any:
  return values.read(kept[name]) if name in kept else None


def _whole(parts: Sequence[Any], kept: Mapping[str, Any]) -> Any:
  """The array of which each device has a part, if all parts are kept."""
  np = importlib.import_module("numpy")
  arrays = [_array(name, kept) for _, _, name in parts]
  if not arrays or any(a is None or a.ndim != len(index) for a, (_, index, _)
                       in zip(arrays, parts)):
    return None
  begin = lambda index: [start for start, _ in index]
  shape = [max(s + n for s, n in zip(starts, sizes)) for starts, sizes in zip(
      zip(*(begin(i) for _, i, _ in parts)), zip(*(a.shape for a in arrays)))]
  out = np.zeros(shape, arrays[0].dtype)
  for (_, index, _), array in zip(parts, arrays):
    out[tuple(slice(s, s + n) for s, n in zip(begin(index), array.shape))
        ] = array
  return out


def _compare_arrays(row: Row, where: str, one: Any, two: Any,
                    names: tuple[str, str], kept: Mapping[str, Any],
                    tolerance: Tolerance) -> None:
  np = importlib.import_module("numpy")
  if one is None or two is None:
    row.kind, row.note = VALUES, f"{where}: {_summary(names, kept)}"
  elif one.shape != two.shape or one.dtype != two.dtype:
    row.kind = VALUES
    row.note = (f"{where}: {one.dtype}{list(one.shape)}, mended "
                f"{two.dtype}{list(two.shape)}")
  else:
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    absolute, relative, beyond = 0., 0., False
    x, y = one.reshape(-1), two.reshape(-1)
    for start in range(0, x.size, 1 << 20):  # by blocks
      found = _block(np, x[start:start + (1 << 20)].astype(wide),
                     y[start:start + (1 << 20)].astype(wide), tolerance,
                     str(one.dtype))
      absolute, relative = max(absolute, found[0]), max(relative, found[1])
      beyond |= found[2]
    if row.same_code or beyond:
      if row.kind != VALUES or absolute > row.absolute:
        row.note = where
      row.kind = VALUES
    row.absolute = max(row.absolute, absolute)
    row.relative = max(row.relative, relative)


def _block(np: Any, x: Any, y: Any, tolerance: Tolerance,
           dtype: str) -> tuple[float, float, bool]:
  """The largest differences, and whether one is beyond the tolerance."""
  with np.errstate(all="ignore"):
    off = np.abs(x - y)
    off = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0., off)
    off = np.where(np.isnan(off), np.inf, off)
    size = np.maximum(np.abs(x), np.abs(y))
    allowed = tolerance.allowed(np, x, dtype)
    relative = np.where(off > 0, off / size, 0.)
  relative = np.where(np.isnan(relative), np.inf, relative)
  return (float(off.max(initial=0.)), float(relative.max(initial=0.)),
          bool((~(off <= allowed)).any()))


def _summary(names: tuple[str, str], kept: Mapping[str, Any]) -> str:
  """The largest and the norm of values too large to be kept."""
  if not any(names):
    return "not compared"
  known = [kept.get(name, {}) for name in names]
  if not any("norm" in k for k in known):  # also if it isn't the same twice
    return "other checksums"
  texts = [f"largest {k['largest']:.6g}, norm {k['norm']:.6g}"
           if "norm" in k else "checksum" for k in known]
  return f"beyond --store: {texts[0]}; mended {texts[1]}"


def same_twice(first: Run, second: Run, found: Sequence[Row]) -> None:
  """Marks the rows whose program the stock jax doesn't repeat."""
  again = {row.key for row in rows(first, second, Tolerance(0., 0.))
           if row.kind != SAME}
  for row in found:
    row.again = row.key in again


def after_others(found: Sequence[Row]) -> None:
  """Says of programs of the same code that their arguments may differ."""
  for row, before in zip(found, itertools.accumulate(
      (r.kind in (VALUES, ONLY_MENDED, ONLY_STOCK) for r in found),
      lambda a, b: a or b, initial=False)):
    if row.kind == VALUES and row.same_code and before:
      row.note += "; the same code, after a row that differs"
