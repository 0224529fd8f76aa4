# SPDX-License-Identifier: Apache-2.0
"""Writes the report of `compare`: at most a screen, the important first."""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
from typing import Any

from jax_mend import rows as kinds
from jax_mend.rows import Row
from jax_mend.runs import Run

_ROWS, _OUTPUT, _STACKS, _TESTS, _STDERR = 5, 4, 4, 6, 6  # lines at most
_WIDTH = 100


def lines(found: Any) -> list[str]:
  """The report on a comparison."""
  out = [_verdict(found), ""]
  for name, run in (("stock", found.stock), ("mended", found.mended)):
    out.append(f"{name:7} {_ended(run)}; {run.seconds:.1f} s"
               + (f", {run.memory / 1e6:.0f} MB" if run.memory else ""))
    out += [f"          {line}" for line in _reason(run)]
  if found.failure() and not found.again:
    out += ["", "the last lines of its standard error:", *(
        f"  {line}" for line in found.mended.text("stderr")[-_STDERR:])]
  out += _output(found)
  out += [f"{test}: {one} on stock, {two} mended"
          for test, one, two in found.outcomes[:_TESTS]]
  out += _programs(found)
  return [line[:_WIDTH * 3] for line in out]


def _programs(found: Any) -> list[str]:
  """The rows that differ, those of a kind together, with their reasons."""
  programs = [r for r in found.rows if r.kind not in (kinds.OUTPUT, kinds.END)]
  rows = [r for r in programs if r.kind in kinds.COUNTED]
  fed = [r for r in programs if r.kind in (kinds.GIVEN, kinds.CLOSE)]
  same = len(programs) - len(rows) - len(fed)
  out = ["", f"{len(programs)} compiled programs: {same} the same"
         + (f", {len(rows)} not:" if rows else ".")]
  told = [line for kind in (
      kinds.VALUES, kinds.ONLY_MENDED, kinds.ONLY_STOCK, kinds.OTHER,
      kinds.CODE) for line in _of_kind([r for r in rows if r.kind == kind])]
  out += _with_reasons(told)
  for kind in (kinds.GIVEN, kinds.CLOSE):
    if off := [r.absolute for r in fed if r.kind == kind]:
      most = f" (off by up to {max(off):.3g})" if any(off) else ""  # if kept
      out.append(f"  not counted: {len(off)} of {kind}{most}")
  return out


def _verdict(found: Any) -> str:
  if failure := found.failure():
    return f"It could not be compared: {failure}."
  if found.code() == 0:
    if found.stock.status is None:
      return "The same: it hangs on both."
    if all(r.kind == kinds.SAME for r in found.rows):
      return ("The same: no fix concerns this program. It ends alike, and each "
              "compiled program and value is equal.")
    return "The same."
  counted = [r.kind for r in found.differing if not r.again]
  counts = ", ".join(f"{counted.count(k)} {k}" for k in kinds.COUNTED
                     if k in counted)
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
    for program in (run.by_number[number] for number in run.open[-1:]):
      found.append(f"in {program.name}, called at {program.line}")
    found += run.stacks[:_STACKS]
    found += [line.partition("] ")[2] or line for line in run.text("stderr")
              if "waiting for" in line or "stuck" in line][:2]
  return found


def _output(found: Any) -> list[str]:
  """The first lines that differ, and what is known of the reason."""
  pairs = kinds.other_output(found.stock, found.mended, found.again,
                             found.mended_again)
  out = []
  if pairs:
    out = ["", "standard output differs:"]
    for left, right in pairs[:_OUTPUT]:
      one, two = (("(nothing)" if line is None else line)[:_WIDTH // 2]
                  for line in (left, right))
      out.append(f"  {one:{_WIDTH // 2}} | {two}")
    if (more := len(pairs) - _OUTPUT) > 0:
      out.append(f"  and {more} more lines")
  for row in found.rows:
    if row.kind in (kinds.OUTPUT, kinds.END):
      out += _with_reasons(_of_kind([row]))
  return out


def _of_kind(rows: Sequence[Row]) -> list[tuple[str, str]]:
  """The rows of a kind, alike ones once, each with the reason."""
  counts: dict[tuple[str, str], int] = {}
  for row in rows:
    place = (_told(row), f"{row.why}; {row.proof}" if row.proof else row.why)
    counts[place] = counts.get(place, 0) + 1
  out = [(f"  {text}" + (f" ({number} programs)" if number > 1 else ""), why)
         for (text, why), number in [*counts.items()][:_ROWS]]
  if more := sum([*counts.values()][_ROWS:]):
    out.append((f"  and {more} more ({rows[0].kind}; --json FILE has all)", ""))
  return out


def _with_reasons(told: Sequence[tuple[str, str]]) -> list[str]:
  """The rows, and after those in a row that have one reason, that."""
  out = []
  for at, (text, why) in enumerate(told):
    out.append(text)
    if why and why not in [w for _, w in told[at + 1:at + 2]]:
      out.append(f"      by {why}")
  return out


def _told(row: Row) -> str:
  """A row, in one line."""
  kind = "not the same twice" if row.again else row.kind
  how = "" if row.how == "compiled" else f" ({row.how})"
  text = f"{kind}: {row.name}{how}" + (f" at {row.line}" if row.line else "")
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
      "code": found.code(), "runs": found.runs,
      "searched": found.searched,
      **{name: {"status": run.status, "seconds": run.seconds,
                "memory": run.memory, "error": run.error, "words": run.words,
                "stacks": run.stacks, "programs": len(run.programs)}
         for name, run in (("stock", found.stock), ("mended", found.mended))},
      "outcomes": [*map(list, found.outcomes)],
      "programs": [dataclasses.asdict(row) for row in found.rows]}
