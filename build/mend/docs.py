"""The generated parts of README.md and CHANGELOG.md.

`build.py docs` writes them between markers: the table of reports and bases
from real runs of the reproductions, the change log from the patches. `check`
fails where the change log, or the table's rows, no longer match the patches.
"""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
import re

from mend import bases, patches, report, reproduce, sides
from mend.bases import Base
from mend.errors import MendError
from packaging.version import Version

COMMAND = "python3 build/build.py docs"
_SECTION = re.compile(r"^## jax .*?(?=^## |^<!-- end)",
                      re.MULTILINE | re.DOTALL)
_KINDS = ("New features", "Bug fixes", "Changes", "Breaking changes")
_CELLS = {("FAIL", "PASS"): "fixed", ("PASS", "PASS"): "works",
          ("n/a", "n/a"): "-", ("FAIL", "FAIL"): "FAILS",
          ("FAIL", "n/a"): "-", ("n/a", "PASS"): "new",
          ("PASS", "FAIL"): "BROKEN",
          ("PASS", "n/a"): "-", ("n/a", "FAIL"): "FAILS"}


def replace_between(text: str, name: str, body: str) -> str:
  """Puts `body` between the two markers of `name`.

  Raises:
    MendError: the markers are not there once each.
  """
  begin = f"<!-- {name}: written by build.py docs -->"
  end = f"<!-- end {name} -->"
  if text.count(begin) != 1 or text.count(end) != 1:
    raise MendError(f"the markers of {name!r} are not there once.",
                    f"put {begin} and {end} around the generated part")
  head, rest = text.split(begin)
  return f"{head}{begin}\n{body.strip()}\n{end}{rest.split(end)[1]}"


def section(page: str, heading: str) -> str:
  """The section of a page that `write_section` wrote, or ""."""
  return next((part for part in _SECTION.findall(page)
               if part.splitlines()[0] == heading), "")


def write_section(document: str, name: str, text: str) -> None:
  """Puts a section into the part `name` of a page; its other sections stay.

  Args:
    document: the page, from the root.
    name: of the generated part.
    text: Markdown that begins with a heading "## jax VERSION..." by which an
      earlier state of the section is found.
  """
  path = bases.ROOT / document
  page = path.read_text(encoding="utf-8")
  found = {part.splitlines()[0]: part for part in _SECTION.findall(page)}
  found[text.splitlines()[0]] = text
  ordered = sorted(found, key=lambda heading: (
      Version(heading.split()[2].rstrip(",")), heading))
  path.write_text(replace_between(
      page, name, "\n\n".join(found[h].strip() for h in ordered)),
                  encoding="utf-8")
  report.say(f"wrote {document}")


def changelog(series: Sequence[patches.Patch]) -> str:
  """The bullets of all patches, grouped by kind as JAX's change log is.

  Raises:
    MendError: a patch's `changelog` does not start with a kind.
  """
  grouped: dict[str, list[str]] = {kind: [] for kind in _KINDS}
  for patch in series:
    kind, _, words = patch.changelog.partition(":")
    if kind not in grouped or not words.strip():
      raise MendError(
          f"patch {patch.id}: changelog starts with {kind!r}, wanted one of "
          f"{', '.join(_KINDS)} and a colon.", f"edit patches/{patch.id}.toml")
    issues = ", ".join(i for i in patch.issues if i not in words)
    versions = [b.version for b in bases.all_bases() if b.within(patch.bases)]
    only = "" if len(versions) == len(bases.all_bases()) else (
        f" On {', '.join(versions)}.")
    tail = f" ({issues})" if issues else ""
    grouped[kind].append(f"  * {words.strip()}{only}{tail}")
  return "\n\n".join(f"* {kind}:\n\n" + "\n".join(bullets)
                     for kind, bullets in grouped.items() if bullets)


def reports_table(series: Sequence[patches.Patch],
                  chosen: Sequence[Base]) -> str:
  """Which defect is fixed on which base: each cell from two real runs."""
  items = reproduce.collect(series)
  cells: list[list[str]] = [[i.report, i.line] for i in items]
  for base in chosen:
    mine = reproduce.only_for(items, series, base)
    made = sides.of(base, series=series)
    before = reproduce.remembered(mine, made.pristine, f"jax {base.version}")
    after = reproduce.remembered(mine, made.mended, f"jax {base.mended}")
    seen = {(i.report, i.line): _CELLS[b.status, a.status]
            for i, b, a in zip(mine, before, after)}
    for row, item in zip(cells, items):
      row.append(seen.get((item.report, item.line), "-"))
  return report.table(
      ("report", "what is mended", *(b.version for b in chosen)), cells)


def write(root: pathlib.Path = bases.ROOT) -> int:
  """Rewrites the generated parts; 1 if the table shows a defect on mended."""
  series = patches.load(root)
  table = reports_table(series, bases.all_bases())
  for file, name, body in (("README.md", "reports", table),
                           ("CHANGELOG.md", "changes", changelog(series))):
    path = root / file
    text = path.read_text(encoding="utf-8")
    path.write_text(replace_between(text, name, body), encoding="utf-8")
    report.say(f"wrote {name} in {file}")
  return 1 if re.search(r"\| (FAILS|BROKEN) ", table) else 0


def stale(root: pathlib.Path = bases.ROOT) -> list[str]:
  """What no longer matches the patches, without running anything."""
  series = patches.load(root)
  log = (root / "CHANGELOG.md").read_text(encoding="utf-8")
  readme = (root / "README.md").read_text(encoding="utf-8")
  found = []
  if replace_between(log, "changes", changelog(series)) != log:
    found.append(f"CHANGELOG.md does not match patches/*.toml; run {COMMAND}")
  for item in reproduce.collect(series, root):
    if item.line not in readme:
      found.append(f"README.md's table lacks {item.line!r}; run {COMMAND}")
  return found
