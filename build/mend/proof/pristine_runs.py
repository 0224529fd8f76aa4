# SPDX-License-Identifier: Apache-2.0
"""Outcomes of test files on a pristine wheel, kept from one run to the next.

They can't change while the file, what it imports of tests/, what runs it and
its environment are the same. They are judged each time; what fails runs again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import pathlib

from mend.ground import cache, repository
from mend.proof import kept
from mend.proof.pytest_run import Outcome
from mend.releases import bases
from mend.trees import imports
import msgspec


class Memory:
  """The outcomes of one file on a pristine wheel, if they are kept.

  A file that reads others, beside those that it imports, is run each time.

  Args:
    python: of its environment, whose folder's name has the wheel's hash.
    file: from the project's root.
    settings: the environment variables.
    options: pytest's.
  """

  def __init__(self, python: pathlib.Path, file: str,
               settings: Mapping[str, str], options: Sequence[str]):
    texts = _texts(file)
    probes = sorted((bases.ROOT / "build" / "probes").glob("*.py"))
    key = cache.key(
        python.parents[1].name, kept.processor(), *options,
        *(f"{k}={v}" for k, v in sorted(settings.items())),
        *(f"{k}\0{v}" for k, v in sorted(texts.items())),
        *(p.read_text(encoding="utf-8") for p in probes))
    self._path = cache.folder(kept.VERDICTS) / f"{key}.json"
    self._usable = not any("__file__" in text for text in texts.values())

  def read(self) -> dict[str, Outcome] | None:
    """The outcomes; None if they aren't kept."""
    if not self._usable or not self._path.is_file():
      return None
    return msgspec.json.decode(self._path.read_bytes(),
                               type=dict[str, Outcome])

  def keep(self, outcomes: dict[str, Outcome]) -> None:
    """Keeps outcomes that have been judged to be as stated."""
    if self._usable:
      with cache.whole(self._path) as made:
        made.write_bytes(msgspec.json.encode(outcomes))


def _texts(file: str) -> dict[str, str]:
  """The texts of a test file and of the modules of tests/ that it needs."""
  found: dict[str, str] = {}
  todo = [file]
  while todo:
    if (name := todo.pop()) in found:
      continue
    found[name] = text = repository.text(bases.ROOT / name)
    for said in imports.names_in(text):
      for dotted in (said, said.rpartition(".")[0]):
        inside = f"tests/{dotted.replace('.', '/')}.py"
        if dotted and (bases.ROOT / inside).is_file():
          todo.append(inside)
  return found
