# SPDX-License-Identifier: Apache-2.0
"""The generated part of docs/upstream.md: what upstream can have of each patch.

From the patches' `[upstream]` tables, `patches/upstream.toml`, the last run of
`export --verify` and the last run of the reproductions on upstream's main;
nothing is run here. A commit
that has changed since it was verified doesn't count as one that can be sent.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping, Sequence
import pathlib

from mend.editing import (
    families, patches, posting, sendable, upstream_alone)
from mend.editing.patches import Patch
from mend.ground import pages, report
from mend.ground.errors import MendError
from mend.releases import bases
from mend.upstream import commits, main_branch
from mend.upstream.commits import Record
from mend.upstream.main_branch import Run

PAGE = "docs/upstream.md"
_NAME = "upstream"
_HEADS = {sendable.DISCUSS: ("patch", "main has the defect",
                             "our code there: discuss"),
          sendable.FORK: ("patch", "main has the defect",
                          "our code there: of no use")}


def tables(series: Sequence[Patch], known: dict[str, families.Family],
           verified: Mapping[str, Record], seen: Run,
           posts: posting.Postings) -> str:
  """Sections: what can be sent, what needs a discussion, and what stays.

  Args:
    series: the patches.
    known: the families.
    verified: the patches' records, by id.
    seen: the defects that main has.
    posts: the order, and the discussions to start.

  Raises:
    MendError: a patch says nothing of upstream.
  """
  silent = [p.id for p in series if not p.upstream.verdict]
  if silent:
    raise MendError(f"{', '.join(silent)}: [upstream] has no `sendable`.",
                    "docs/patches.md says what it may be")
  parts = [_section(sendable.SENDABLE, _run(series, verified) + "\n\n"
                    + _sent(posts, verified)),
           _section("reports to file first", _reports(series, posts)),
           _section("discussions to start", _discussions(posts)), _main(seen)]
  parts += [_section(verdict, "\n\n".join(
      f"### {name}\n\n" + report.table(_HEADS[verdict], rows)
      for name in known if (rows := _rows(series, name, verdict, seen))))
            for verdict in (sendable.DISCUSS, sendable.FORK)]
  return "\n\n".join(parts)


def _section(verdict: str, body: str) -> str:
  return f"## {verdict[0].upper()}{verdict[1:]}\n\n{body}"


def _sendable(series: Sequence[Patch]) -> list[Patch]:
  return [p for p in series if p.upstream.verdict == sendable.SENDABLE]


def can_be_sent(series: Sequence[Patch], verified: Mapping[str, Record],
                ) -> list[Record]:
  """The records of the commits that are as they were verified."""
  found = (commits.record_of(p, verified) for p in _sendable(series))
  return [record for record in found if record]


def _run(series: Sequence[Patch], verified: Mapping[str, Record]) -> str:
  """The last run, in numbers."""
  good, mine = can_be_sent(series, verified), _sendable(series)
  if not good:
    return f"None of {report.plural(len(mine), 'commit')} is verified."
  places = sorted({f"{r.commit[:10]} of {r.date}, run on {r.run}"
                   for r in good})
  tests, red = sum(r.tests for r in good), sum(r.red for r in good)
  released = collections.Counter(r.release for r in good if r.release)
  also = "".join(
      f"\n{n} of them are red without the source and green with it on jax "
      f"{version} as well, by\nmain's tests."
      for version, n in sorted(released.items()))
  return (f"{len(good)} of {report.plural(len(mine), 'commit')} pass every "
          f"check of `--verify` on upstream's main\n({'; '.join(places)}):\n"
          f"{min(r.lines for r in good)} to {max(r.lines for r in good)} lines "
          f"of source each, {report.plural(tests, 'test')}, {red} of them red "
          f"without the source.{also}\nA commit that has changed since can't "
          "be sent before it is verified again.")


def _sent(posts: posting.Postings, verified: Mapping[str, Record]) -> str:
  """A row for each commit, in the order in which they are sent."""
  rows = []
  for number, (patch, post) in enumerate(posts.commits, 1):
    commit = patch.upstream.commit
    assert commit
    record = commits.record_of(patch, verified)
    rows.append((str(number), f"`{patch.id}`", commit.title, post.area,
                 ", ".join(f"jax#{issue}" for issue in commit.closes) or "-",
                 "; ".join((*post.touches, *(
                     f"after `{p}`" for p in commit.after))) or "-",
                 f"{record.red} red of {record.tests}" if record
                 else "changed since", "main" + (
                     f", {record.release}" if record.release else "")
                 if record else "-", patch.upstream.pr
                 or patch.upstream.status))
  return report.table(("", "patch", "commit", "area", "ends", "touches",
                       "verified", "on", "state"), rows)


def _reports(series: Sequence[Patch], posts: posting.Postings) -> str:
  """An issue for each commit that ends none, and those without a commit."""
  parts = ["These commits end no issue. File one first, in your words:"]
  parts += [_report(p) for p, _ in posts.commits if p.upstream.report]
  alone = [_report(p) for p in series
           if p.upstream.report and not p.upstream.commit]
  if alone:
    parts += ["These have no commit, and are a report alone:", *alone]
  return "\n\n".join(parts)


def _report(patch: Patch) -> str:
  found = patch.upstream.report
  assert found
  on = "" if found.devices == 1 else (
      f"\n\nOn {found.devices} devices "
      f"(`XLA_FLAGS={found.xla_flags}` on CPU):")
  return (f"### {patch.id}\n\n{found.symptom}{on}\n\n```python\n"
          f"{found.program}\n```\n\nprints on main:\n\n"
          f"```\n{found.output}\n```")


def _discussions(posts: posting.Postings) -> str:
  if not posts.discussions:
    return "None is known."
  parts = ["What users meet most of what is to be discussed. An issue each, in "
           "your words, none before\nits question has been looked for there:"]
  for number, one in enumerate(posts.discussions, 1):
    parts.append(f"### {number}. {one.title}\n\n"
                 f"{', '.join(f'`{p}`' for p in one.patches)}. "
                 f"{'; '.join(one.issues)}.\n\n{one.form.strip()}")
  return "\n\n".join(parts)


def _main(seen: Run) -> str:
  """The sentence on which the column of defects rests."""
  failing, ran = seen.counts
  return _section("does main have the defects", (
      f"{failing} of {report.plural(ran, 'program')} of the reports show their "
      f"defect on upstream's main, unpatched\n({seen.commit[:10]} of "
      f"{seen.date}, run on {seen.run}, by `check --candidate --run`). In the "
      "tables, \"-\" is of\nwhat has no program, or isn't for a release as new."
      if ran else "Nobody has run the reports' programs there."))


def _rows(series: Sequence[Patch], family: str, verdict: str,
          seen: Run) -> list[tuple[str, str, str]]:
  return [(f"`{p.id}`", seen.said_of(p.id), p.upstream.why) for p in series
          if families.of(p.id) == family and p.upstream.verdict == verdict]


def counted(series: Sequence[Patch], verified: Mapping[str, Record]) -> str:
  """README's sentence that counts them."""
  n = {verdict: sum(p.upstream.verdict == verdict for p in series)
       for verdict in (sendable.SENDABLE, sendable.DISCUSS, sendable.FORK)}
  good = len(can_be_sent(series, verified))
  waiting = n[sendable.SENDABLE] - good
  return (f"Of the {len(series)} patches, {good} can be sent to upstream"
          + (f" and {waiting} when verified" if waiting else "")
          + f", {n[sendable.DISCUSS]} need a discussion\nfirst, and "
          f"{n[sendable.FORK]} are for the fork only ([list]({PAGE})).")


def parts(root: pathlib.Path) -> list[tuple[str, str, str]]:
  """The generated parts: the page, the part's name and its text."""
  mine = patches.load(root)
  series = upstream_alone.with_commits(mine, root)
  verified = commits.verified(root)
  return [("README.md", _NAME, counted(mine, verified)),
          (PAGE, _NAME, tables(series, families.load(root), verified,
                               main_branch.defects(root),
                               posting.read(series, root)))]


def stale(root: pathlib.Path = bases.ROOT) -> list[str]:
  """The pages that no longer match the patches."""
  return [f"{file}: its {name} does not match [upstream] of patches/*.toml"
          for file, name in pages.differing(root, parts(root))]
