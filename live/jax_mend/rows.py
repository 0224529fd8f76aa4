# SPDX-License-Identifier: Apache-2.0
"""Says of each program of two runs how it differs."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import dataclasses

from jax_mend import pairing, texts
from jax_mend.differences import Difference, Tolerance, Values
from jax_mend.runs import Program, Run

SAME, VALUES, OTHER = "same", "other values", "other code"
CODE = "other code, same values"
ONLY_MENDED, ONLY_STOCK = "only mended", "only stock"
GIVEN = "the same code, given other values"
CLOSE = "the same code, values within the tolerance"
OUTPUT, END = "other output", "another end"
COUNTED = (VALUES, OTHER, CODE, ONLY_MENDED, ONLY_STOCK, OUTPUT, END)
_NOT_TWICE = "not the same twice on the stock jax"


@dataclasses.dataclass
class Row:
  """A program of one run or both; or what the runs print, or how they end.

  Attributes:
    kind: one of SAME, GIVEN, CLOSE and COUNTED.
    same_code: whether the modules' texts are equal.
    absolute: the largest difference of values, and `relative` to the value.
    note: which call, result and device have it, or what else is to say.
    stock: the program's number there, and `mended`; None if it has none.
    again: the stock jax gives other values each time, too.
    follows: one side has ended before, at the row before it.
  """
  kind: str
  name: str
  line: str
  test: str = ""
  how: str = "compiled"
  stock: int | None = None
  mended: int | None = None
  same_code: bool = False
  absolute: float = 0.
  relative: float = 0.
  note: str = ""
  patches: dict[str, list[str]] = dataclasses.field(default_factory=dict)
  why: str = ""
  confirmed: bool = False  # without that patch the stock code is back
  proof: str = ""  # the reason why it is confirmed, or not
  again: bool = False
  follows: bool = False

  @property
  def key(self) -> tuple[str, int | None, int | None]:
    return self.kind if self.kind in (OUTPUT, END) else "", (
        self.stock), self.mended


def rows(stock: Run, mended: Run, tolerance: Tolerance,
         again: Run | None = None) -> list[Row]:
  """A row for each program of two runs.

  Args:
    stock: one of them.
    mended: the other.
    tolerance: the differences of values that count as none.
    again: another run on the stock jax, which has kept values.
  """
  kept = Values([run.folder for run in (stock, mended, again) if run],
                tolerance)
  out: list[Row] = []
  for a, b in _told_once(pairing.pairs(stock.programs, mended.programs)):
    program = a or b  # the key is stock's, with which others are compared
    assert program
    row = Row(SAME, program.name, program.line, program.test, program.how,
              a.number if a else None, b.number if b else None,
              patches=b.patches if b else {})
    if a is None or b is None:
      row.kind = ONLY_MENDED if a is None else ONLY_STOCK
      _blame_error(row, stock if a is None else mended)
    else:
      _compare(row, a, b, kept)
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


def _told_once(found: Sequence[pairing.Pair]) -> list[pairing.Pair]:
  """Pairs without the lowered programs that were compiled, too."""
  codes = [{p.code for p in side if p and p.how != "lowered"}
           for side in ([a for a, _ in found], [b for _, b in found])]
  return [pair for pair in found if not all(
      p is None or p.how == "lowered" and p.code in known
      for p, known in zip(pair, codes))]


def _compare(row: Row, a: Program, b: Program, kept: Values) -> None:
  """Compares the code of two programs, and the values of their calls."""
  row.same_code = a.code == b.code
  found, alike, compared = Difference(), True, 0
  for at, given, one, two in pairing.calls(a, b):
    compared += 1
    before = found.unequal
    if len(one) != len(two):
      found.add(f"{len(one)} results, not {len(two)}")
    for number, parts in enumerate(zip(one, two)):
      kept.compare(found, f"call {at}, result {number}", *parts)
    alike &= given or found.unequal == before
  row.absolute, row.relative = found.absolute, found.relative
  row.note = found.where if found.beyond else ""
  if found.unequal and row.same_code:
    row.kind = (GIVEN if not alike else VALUES if found.beyond else CLOSE)
  elif not row.same_code:
    row.kind = VALUES if found.beyond else CODE
    if not compared:
      row.kind = OTHER
      row.note = ("lowered, and not run" if row.how == "lowered" else
                  "no call of it in common")


def _compare_counts(row: Row, on_stock: int, mended: int, one: Run,
                    two: Run) -> None:
  """Tells of calls that one side hasn't made, unless it has ended before."""
  if on_stock == mended or row.kind not in (SAME, CODE, OTHER):
    return
  row.note = f"called {on_stock} times, mended {mended}"
  if row.same_code and one.status == two.status:
    row.kind = VALUES


def _blame_error(row: Row, lacking: Run) -> None:
  """Says which error, at the program's own line, has kept it from one side."""
  error = lacking.error
  if error and error["line"] == row.line:
    row.note = f"{error['type']}: {error['text']}"


def same_twice(first: Run, second: Run, mended: Run,
               found: Sequence[Row]) -> None:
  """Marks the rows whose program the stock jax doesn't repeat.

  If its code is the same twice, other code is a difference nevertheless. A
  program that mended has alone isn't one if the second run has it: it comes of
  what the first has left, such as a file.
  """
  other_rows = rows(first, second, Tolerance(0., 0.))
  again = {row.stock: row for row in other_rows if row.kind != SAME}
  late = {row.mended for row in other_rows if row.stock is None}
  kinds = collections.Counter(
      (p.key, p.code) for p in second.programs if p.number in late)
  codes = {p.number: (p.key, p.code) for p in mended.programs}
  for row in found:
    if row.stock is None and row.mended is not None and (
        kinds[codes[row.mended]] > 0):
      kinds[codes[row.mended]] -= 1
      row.again = True
    other = again.get(row.stock) if row.stock is not None else None
    if other is None:
      continue
    if other.same_code and not row.same_code and row.mended is not None:
      row.kind, row.note = OTHER, f"its values are {_NOT_TWICE}"
      row.absolute = row.relative = 0.
    else:
      row.again = True


def judge_given(found: Sequence[Row]) -> None:
  """Counts the first row of the same code and other values, if none is before.

  Then something that isn't compiled has given other arguments. Those after a
  row that differs are explained by it.
  """
  before = False
  for row in found:
    if row.kind == GIVEN and not row.again and row.note and not before:
      row.kind = VALUES
    before |= row.kind in COUNTED and not row.again


def of_texts(stock: Run, mended: Run, again: Run | None = None,
             mended_again: Run | None = None) -> list[Row]:
  """Rows for other output, and for another end, where it is the same twice."""
  patches = dict(mended.rest)
  for program in mended.programs:
    for patch, functions in program.patches.items():
      patches[patch] = [*dict.fromkeys([*patches.get(patch, ()), *functions])]
  out = []
  if end := ended_otherwise(stock, mended, again, mended_again):
    out.append(Row(END, "the end", "", note=end, patches=patches))
  elif output := other_output(stock, mended, again, mended_again):
    absolute, relative = texts.off_by(output)
    out.append(Row(OUTPUT, "standard output", "", absolute=absolute,
                   relative=relative, patches=patches))
  return out


def other_output(stock: Run, mended: Run, again: Run | None = None,
                 mended_again: Run | None = None) -> texts.Pairs:
  """The lines of standard output that differ, where they are the same twice."""
  lines = lambda run: texts.own(run.text("stdout"))
  found = texts.stable(lines(stock), lines(mended), [
      (lines(a), lines(b))
      for a, b in _repeated((stock, again), (mended, mended_again))])
  return [*texts.differing(*found)] if found else []


def _repeated(*both: tuple[Run, Run | None]) -> list[tuple[Run, Run]]:
  return [(one, two) for one, two in both if two]


def ended_otherwise(stock: Run, mended: Run, again: Run | None = None,
                    mended_again: Run | None = None) -> str:
  """The part of two ends that differs and is the same twice; "" for none."""
  repeated = _repeated((stock, again), (mended, mended_again))
  for name, of in (("exit status", lambda run: run.status),
                   ("error", lambda run: run.error.get("type"))):
    if of(stock) != of(mended) and all(of(a) == of(b) for a, b in repeated):
      return name
  lines = lambda run: [run.error.get("text", "")]
  found = texts.stable(lines(stock), lines(mended), [
      (lines(a), lines(b)) for a, b in repeated])
  same_type = stock.error.get("type") == mended.error.get("type")
  return "error" if same_type and found and found[0] != found[1] else ""


def unstable_end(stock: Run, again: Run | None) -> bool:
  """True if the stock jax doesn't end twice with the same status and error."""
  return again is not None and (
      stock.status, stock.error.get("type")) != (
          again.status, again.error.get("type"))
