# SPDX-License-Identifier: Apache-2.0
"""The `[upstream]` table: where a patch stands with upstream, and its commit.

A patch is the fork's for many releases; most are of no use to upstream as they
are. One that can be sent has edits of its own, `[[upstream.edit]]`, that stand
instead of its edits and modules when it is exported for a pull request: the
code at its place, and tests in upstream's own class.
"""

from __future__ import annotations

from collections.abc import Callable
import dataclasses
import hashlib
import json
import re
from typing import Any

from mend.editing import edit, keys
from mend.editing.edit import Edit
from mend.editing.keys import Refuse

STATUSES = ("not-sent", "sent", "merged", "rejected", "fork-only")
SENDABLE, DISCUSS, FORK = "sendable", "discuss first", "the fork's"
MAX_LINES = 80  # of source, added and removed, in a commit
MAX_WORDS = 80  # of a message's body
_MAX_PROGRAM = 10  # lines of a report's program
_WIDTH = 72  # of a commit's message
_STATE = ("status", "pr", "landed_in")
_COMMIT = ("title", "message", "edit")
_OPTIONAL = ("closes", "guard", "changelog", "report", "after")
_REASONS = {"discuss": DISCUSS, "fork": FORK}
_OURS = re.compile(r"\bmend(ed|s|_\w+)?\b|\bjax[-_]mend|\bpristine\b",
                   re.IGNORECASE)


@dataclasses.dataclass(frozen=True)
class Report:
  """An issue to file before the commit, or without one.

  Attributes:
    symptom: the first words, on one line; those of a commit are its message's.
    program: what shows it.
    output: what that prints on main.
    devices: how many it needs.
  """
  symptom: str
  program: str
  output: str
  devices: int = 1

  @property
  def xla_flags(self) -> str:
    """The flags by which a CPU is as many devices."""
    return f"--xla_force_host_platform_device_count={self.devices}"


@dataclasses.dataclass(frozen=True)
class Commit:
  """A pull request's commit, as written for upstream.

  Attributes:
    title: the subject.
    message: two paragraphs: the symptom with its error, and the cause.
    closes: the open issues that it ends, as numbers.
    edits: those that make it, of source and of tests.
    guard: whether it has tests alone, of what is right on main.
    changelog: `Kind: words` for upstream's change log; "" without a line there.
    digest: a short hash of all that is sent.
    after: the patches whose commits must be merged before it is sent.
  """
  title: str
  message: str
  closes: tuple[str, ...]
  edits: tuple[Edit, ...]
  guard: bool = False
  changelog: str = ""
  digest: str = ""
  after: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Upstream:
  """The standing of a patch with upstream.

  Attributes:
    status: one of STATUSES, the first where a patch says none.
    pr: the pull request.
    landed_in: the release that has it.
    verdict: SENDABLE, DISCUSS or FORK; "" where nobody has said.
    why: the reason, of one that isn't sendable.
    commit: of one that is.
    report: what to file, where no commit ends an issue.
  """
  status: str
  pr: str = ""
  landed_in: str = ""
  verdict: str = ""
  why: str = ""
  commit: Commit | None = None
  report: Report | None = None


def read(patch: str, data: dict[str, Any], refuse: Refuse,
         imports: Callable[[str], tuple[str, ...]]) -> Upstream:
  """The patch's `[upstream]` table.

  Args:
    patch: its id.
    data: the table, of the right types.
    refuse: the error for what the format does not allow.
    imports: the imports of our modules that an edit's code implies.
  """
  keys.check_keys(data, (), (*_STATE, "sendable", *_OPTIONAL, *_COMMIT),
                  "upstream: ", refuse)
  data = {"status": STATUSES[0], **data}
  if data["status"] not in STATUSES:
    raise refuse(f"upstream.status is {data['status']!r}, wanted one of "
                 f"{', '.join(STATUSES)}")
  verdict, why = _verdict(data, refuse)
  commit = _commit(patch, data, refuse, imports)
  if verdict == SENDABLE and not commit or (
      commit and verdict not in (SENDABLE, DISCUSS)):
    raise refuse("upstream: sendable = true, title, message and "
                 "[[upstream.edit]] go together; a discussion may have them")
  return Upstream(**{k: data.get(k, "") for k in _STATE}, verdict=verdict,
                  why=why, commit=commit, report=_report(data, verdict, refuse))


def _verdict(data: dict[str, Any], refuse: Refuse) -> tuple[str, str]:
  said = data.get("sendable")
  if said is None and data["status"] == "fork-only":
    return FORK, "it says what the fork is"
  if said is None or said is True:
    return SENDABLE if said else "", ""
  kind, _, why = str(said).partition(": ")
  if kind not in _REASONS or not why.strip():
    raise refuse(f"upstream.sendable is {said!r}, wanted true, 'discuss: WHAT "
                 "UPSTREAM DECIDED, WHERE' or 'fork: WHY'")
  return _REASONS[kind], why.strip()


def _commit(patch: str, data: dict[str, Any], refuse: Refuse,
            imports: Callable[[str], tuple[str, ...]]) -> Commit | None:
  if not any(k in data for k in (*_COMMIT, *_OPTIONAL) if k != "report"):
    return None
  where = "upstream: "
  for key in _COMMIT:
    if not data.get(key):
      raise refuse(f"{where}missing key {key}")
  for issue in data.get("closes", []):
    if not issue.isdecimal():
      raise refuse(f"{where}closes {issue!r}, wanted an issue's number")
  found = [e for i, d in enumerate(data["edit"])
           for e in edit.read(patch, i + 1, d, refuse, imports,
                              "upstream edit", None)]
  commit = Commit(
      data["title"], data["message"].strip(), tuple(data.get("closes", ())),
      tuple(found), data.get("guard", False), data.get("changelog", ""),
      _digest(data), tuple(data.get("after", ())))
  _check_words(commit, refuse)
  return commit


def _digest(data: dict[str, Any]) -> str:
  sent = {k: v for k, v in data.items() if k in (*_COMMIT, *_OPTIONAL)}
  text = json.dumps(sent, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()[:16]


def _report(data: dict[str, Any], verdict: str,
            refuse: Refuse) -> Report | None:
  """The report: of what can be sent and ends no issue, or of no commit."""
  wanted = verdict == SENDABLE and not (
      data.get("closes") or data.get("guard"))
  alone = verdict == DISCUSS and "title" not in data
  if wanted != ("report" in data) and not alone:
    raise refuse("upstream: a commit that ends no issue needs a report to "
                 "file first, [upstream.report]; no other commit has one")
  if "report" not in data:
    return None
  given = data["report"]
  required = ("program", "output", *(("symptom",) if alone else ()))
  keys.check_keys(given, required, ("devices",), "upstream: report: ", refuse)
  paragraph = given["symptom"] if alone else data["message"].strip().partition(
      "\n\n")[0]
  found = Report(" ".join(paragraph.split()), given["program"].strip(),
                 given["output"].strip(), given.get("devices", 1))
  if len(found.program.splitlines()) > _MAX_PROGRAM or not found.output:
    raise refuse(f"upstream: report: at most {_MAX_PROGRAM} lines of program, "
                 "and what it prints on main")
  return found


def _check_words(commit: Commit, refuse: Refuse) -> None:
  """Refuses a message that no maintainer wants, and words of the fork's."""
  where = "upstream: "
  for line in (commit.title, *commit.message.splitlines()):
    if len(line) > _WIDTH and " " in line.strip():
      raise refuse(f"{where}a line of its message is longer than {_WIDTH}: "
                   f"{line!r}")
  if len(commit.message.split("\n\n")) != 2:
    raise refuse(f"{where}its message isn't two paragraphs: the symptom with "
                 "the error's text, and the cause")
  if (count := len(commit.message.split())) > MAX_WORDS:
    raise refuse(f"{where}its message has {count} words, more than "
                 f"{MAX_WORDS}")
  texts = [commit.title, commit.message, commit.changelog,
           *(e.code for e in commit.edits)]
  if said := next((m[0] for t in texts if (m := _OURS.search(t))), ""):
    raise refuse(f"{where}{said!r} is a word of the fork's, not of upstream's")
  if used := [name for e in commit.edits for name in e.imports]:
    raise refuse(f"{where}{used[0]!r}: a module of the fork's. Write the code "
                 "at its place")
