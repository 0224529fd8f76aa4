# SPDX-License-Identifier: Apache-2.0
"""Pages of Markdown that are written in part, between two markers."""

from __future__ import annotations

from collections.abc import Sequence
import pathlib
import re

from mend.ground import report, repository
from mend.ground.errors import MendError
from packaging.version import Version

_SECTION = re.compile(r"^## jax .*?(?=^## |^<!-- end)",
                      re.MULTILINE | re.DOTALL)


def replace_between(text: str, name: str, body: str) -> str:
  """Puts `body` between the two markers of `name`.

  Raises:
    MendError: the markers are not there once each.
  """
  begin = f"<!-- {name}: written by build.py -->"
  end = f"<!-- end {name} -->"
  if text.count(begin) != 1 or text.count(end) != 1:
    raise MendError(f"the markers of {name!r} are not there once.",
                    f"put {begin} and {end} around the generated part")
  head, rest = text.split(begin)
  return f"{head}{begin}\n{body.strip()}\n{end}{rest.split(end)[1]}"


def put(root: pathlib.Path, parts: Sequence[tuple[str, str, str]]) -> None:
  """Rewrites generated parts: each one's page, its name and its text."""
  for file, name, body in parts:
    text = repository.text(root / file)
    (root / file).write_text(replace_between(text, name, body), "utf-8")
    report.say(f"wrote {name} in {file}")


def differing(root: pathlib.Path, parts: Sequence[tuple[str, str, str]],
              ) -> list[tuple[str, str]]:
  """The page and the name of each part that `put` would change."""
  texts = ((file, name, body, repository.text(root / file))
           for file, name, body in parts)
  return [(file, name) for file, name, body, text in texts
          if replace_between(text, name, body) != text]


def section(page: str, heading: str) -> str:
  """The section of a page that `write_section` wrote, or ""."""
  return next((part for part in _SECTION.findall(page)
               if part.splitlines()[0] == heading), "")


def write_section(path: pathlib.Path, name: str, text: str,
                  instead: str = "") -> None:
  """Puts a section into the part `name` of a page; its other sections stay.

  Args:
    path: the page.
    name: of the generated part.
    text: Markdown that begins with a heading "## jax VERSION..." by which an
      earlier state of the section is found.
    instead: words of the headings whose sections this one replaces, too.
  """
  page = repository.text(path)
  found = {part.splitlines()[0]: part for part in _SECTION.findall(page)
           if not (instead and instead in part.splitlines()[0])}
  found[text.splitlines()[0]] = text
  ordered = sorted(found, key=lambda heading: (
      Version(heading.split()[2].rstrip(",")), heading))
  path.write_text(replace_between(
      page, name, "\n\n".join(found[h].strip() for h in ordered)),
                  encoding="utf-8")
  report.say(f"wrote {path.parent.name}/{path.name}")
