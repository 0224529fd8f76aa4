# SPDX-License-Identifier: Apache-2.0
"""Writes the report of `compare`: at most a screen, the important first."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import difflib
from typing import Any

from jax_mend import pairing
from jax_mend.pairing import Row
from jax_mend.runs import Run

_ROWS, _OUTPUT, _STACKS, _TESTS = 5, 4, 4, 6  # lines of each at most
_WIDTH = 100


def lines(found: Any) -> list[str]:
  """The report on a comparison."""
  out = [_verdict(found), ""]
  for name, run in (("stock", found.stock), ("mended", found.mended)):
    out.append(f"{name:7} {_ended(run)}; {run.seconds:.1f} s"
               + (f", {run.memory / 1e6:.0f} MB" if run.memory else ""))
    out += [f"          {line}" for line in _reason(run)]
  out += _output(found.stock, found.mended)
  out += [f"{test}: {one} on stock, {two} mended"
          for test, one, two in found.outcomes[:_TESTS]]
  rows = found.differing
  same = len(found.rows) - len(rows)
  out += ["", f"{len(found.rows)} compiled programs: {same} the same"
          + (f", {len(rows)} not:" if rows else ".")]
  for kind in (pairing.VALUES, pairing.ONLY_MENDED, pairing.ONLY_STOCK,
               pairing.CODE):
    out += _of_kind([row for row in rows if row.kind == kind])
  return [line[:_WIDTH * 3] for line in out]


def _verdict(found: Any) -> str:
  code = found.code()
  if code == 0 and found.stock.status is None:
    return "The same: it hangs on both."
  if code == 0:
    return ("The same: no fix concerns this program. It ends alike, and each "
            "compiled program and value is equal."
            if not found.differing else "The same.")
  if code == 2:
    return ("It could not be compared: " + (
        "it isn't the same twice on the stock jax (dates, random numbers "
        "without a seed, threads?)." if found.stock.recorded
        and found.mended.recorded else "Python did not start as usual."))
  kinds = [r.kind for r in found.differing if not r.again]
  counts = ", ".join(f"{kinds.count(k)} {k}" for k in (
      pairing.VALUES, pairing.CODE, pairing.ONLY_MENDED, pairing.ONLY_STOCK)
                     if k in kinds)
  return "It differs" + (f": {counts}." if counts else ".")


def _ended(run: Run) -> str:
  if run.status is None:
    return "hung"
  if run.status < 0:
    return f"was ended by signal {-run.status}"
  return f"exit status {run.status}"


def _reason(run: Run) -> list[str]:
  """An error's own line and text, or where a program that hangs is."""
  if run.error:
    error = run.error
    return [f"{error['type']} at {error['line']}: {error['text']}"]
  found: list[str] = []
  if run.status is None or run.status < 0:
    for program in (run.programs[number] for number in run.open[-1:]):
      found.append(f"in {program.name}, called at {program.line}")
    found += run.stacks[:_STACKS]
    found += [line.partition("] ")[2] or line for line in run.text("stderr")
              if "waiting for" in line or "stuck" in line][:2]
  return found


def _output(stock: Run, mended: Run) -> list[str]:
  one, two = stock.text("stdout"), mended.text("stdout")
  if one == two:
    return []
  out = ["", "standard output differs:"]
  for tag, i, j, k, l in difflib.SequenceMatcher(
      None, one, two, autojunk=False).get_opcodes():
    if tag != "equal":
      for n in range(max(j - i, l - k)):
        left = one[i + n] if i + n < j else "(nothing)"
        right = two[k + n] if k + n < l else "(nothing)"
        out.append(f"  {left[:_WIDTH // 2]:{_WIDTH // 2}} | "
                   f"{right[:_WIDTH // 2]}")
  more = len(out) - 2 - _OUTPUT
  return out[:2 + _OUTPUT] + ([f"  and {more} more lines"] if more > 0 else [])


def _of_kind(rows: Sequence[Row]) -> list[str]:
  """The rows of a kind, alike ones once, with the reason below them."""
  counts: dict[tuple[str, str], int] = {}
  for row in rows:
    place = (_told(row), f"{row.why}; {row.proof}" if row.proof else row.why)
    counts[place] = counts.get(place, 0) + 1
  out, told = [], [*counts]
  for at, (text, why) in enumerate(told[:_ROWS]):
    number = counts[text, why]
    out.append(f"  {text}" + (f" ({number} programs)" if number > 1 else ""))
    following = told[at + 1][1] if at + 1 < min(len(told), _ROWS) else None
    if why and why != following:
      out.append(f"      by {why}")
  if more := sum(counts[k] for k in told[_ROWS:]):
    out.append(f"  and {more} more ({rows[0].kind}; --json FILE has all)")
  return out


def _told(row: Row) -> str:
  """A row, in one line."""
  kind = "not the same twice" if row.again else row.kind
  text = f"{kind}: {row.name}" + (f" at {row.line}" if row.line else "")
  if row.test:
    text += f" in {row.test}"
  if row.absolute or row.relative:
    text += f"; off by {row.absolute:.3g}, relative {row.relative:.3g}"
  if row.note:
    text += f" ({row.note[:_WIDTH]})"
  return text


def facts(found: Any) -> dict[str, Any]:
  """All that was found, for --json."""
  return {
      "code": found.code(), "runs": 2 + found.repeated + len(found.searched),
      "searched": found.searched,
      **{name: {"status": run.status, "seconds": run.seconds,
                "memory": run.memory, "error": run.error, "words": run.words,
                "stacks": run.stacks, "programs": len(run.programs)}
         for name, run in (("stock", found.stock), ("mended", found.mended))},
      "outcomes": [*map(list, found.outcomes)],
      "programs": [dataclasses.asdict(row) for row in found.rows]}
