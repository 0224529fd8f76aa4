# SPDX-License-Identifier: Apache-2.0
"""`build.py new_release V`: takes a release in, and says what is left to do.

The entry of build/bases.toml says what can be found out: the hash, the Pythons
that there is a jaxlib for, what pip picks to run it on, whether it is another
release's twin. Its line is its neighbour's until a person says otherwise. Then
each edit is looked for: what is gone has to be ported, and a definition that is
not as anybody read it is shown as a difference to the nearest release's. Where
all edits are found, a sample of the tests runs on both wheels.

Cost: a download and two environments, a minute, and the sample's two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
import difflib
import pathlib
import re
import sys
import time

from mend.editing import edits, operations, patches, placing, syntax
from mend.ground import cache, process, report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.house import anchors
from mend.proof import testing, venvs
from mend.proof.shares import Extent
from mend.releases import bases, interpreters, source
from mend.releases.bases import Base
from mend.trees import drift, tree
from mend.upkeep import candidate_report, candidates
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
import tomlkit

_COMMAND = "python3 build/build.py"
_ENTRY = "[[base]]\n"
_SHOWN = 24  # lines of a difference
_NEWER = 8  # minor versions of Python to ask for, from the oldest on
_TO_READ = (drift.DRIFTED, drift.NEW)
_TO_PORT = (drift.GONE, drift.THERE)


def run(version: str, run_tests: bool) -> Verdict:
  """Takes a release in and looks at it.

  Args:
    version: the release.
    run_tests: whether the sample runs, too.

  Raises:
    MendError: there is no such release, or it is one of ours already.
  """
  began = time.monotonic()
  base = add(version)
  series = patches.load()
  if base.twin_of:
    return _ends(base, [], began)
  todo = _look(series, base)
  if run_tests:
    todo += _sample(series, base, ported=not any("port" in t for t in todo))
  return _ends(base, todo, began)


def _ends(base: Base, todo: list[str], began: float) -> Verdict:
  """Prints what is left to do, in order."""
  steps = [
      *todo, f"build/bases.toml: is {base.line} its line, and "
      + (f"jax {base.twin_of} the same files" if base.twin_of else
         f"`{base.proof}` its proof") + "?",
      f"{_COMMAND} tables; {_COMMAND} docs; {_COMMAND} check"]
  if not base.twin_of:
    steps += [
        f"{_COMMAND} test --base={base.version}: green on both sides",
        f"{_COMMAND} build --base={base.version}: the reports' programs",
        f"{_COMMAND} fuzz --base={base.version} --programs=200",
        f"{_COMMAND} test --upstream=CHECKOUT --base={base.version}"]
  report.say(f"\nLeft to do for jax {base.version}:")
  for number, step in enumerate(steps, 1):
    report.say(f"  {number}. {step}")
  words = (f"jax {base.version} is in build/bases.toml; "
           f"{report.plural(len(todo), 'finding')} in "
           f"{time.monotonic() - began:.0f} s.")
  return Verdict(words, "what is listed above" if todo else "")


def add(version: str) -> Base:
  """Fetches, hashes and installs a release, and records it as a base.

  Raises:
    MendError: see `run`.
  """
  try:
    version = str(Version(version))
  except InvalidVersion as e:
    raise MendError(f"{version!r} is no version.",
                    f"{_COMMAND} new_release 0.12.1") from e
  if version in [b.version for b in bases.releases()]:
    raise MendError(f"jax {version} is a base already.",
                    f"{_COMMAND} check --base={version}")
  entry = _entry(candidates.release(version))
  with cache.lock("bases"):
    text = inserted(tree.read(bases.BASES_FILE), entry)
    tree.write(bases.BASES_FILE, text)
  bases.forget()
  base = bases.get(version)
  report.say(f"jax {version}: line {base.line}, Python {bases.pythons(base)}, "
             + (f"the files of {base.twin_of}" if base.twin_of else
                f"{base.proof}, on {' '.join(base.requirements)}"))
  return base


def _entry(found: Base) -> dict[str, object]:
  """The entry of a release, as far as it can be found out."""
  near = candidates.nearest(found.version)
  twin = _twin(found)
  newest = Version(found.version) > Version(bases.releases()[-1].version)
  lowest, wanted = candidates.requirements(source.pristine(found))
  entry: dict[str, object] = {"version": found.version, "line": near.line}
  if twin:
    entry["twin_of"] = twin
  elif not newest:
    entry["proof"] = "sample"
  pins = _pins(found, wanted)
  jaxlib = next(p for p in pins if Requirement(p).name == "jaxlib")
  return {**entry, "sha256": found.sha256,
          "python": _with_limit(lowest, jaxlib), "requirements": pins}


def _twin(found: Base) -> str:
  """The release that has the same files but for version.py, or ""."""
  for base in candidates.neighbours(found.version):
    if not base.twin_of and not source.differences(found, base):
      return base.version
  return ""


def _with_limit(lowest: str, jaxlib: str) -> str:
  """The range of Pythons up to the last with a wheel of that jaxlib.

  Raises:
    MendError: none is found for the oldest, so that nothing follows from none.
  """
  supported = [n for n in range(10, 10 + 10 * _NEWER)
               if SpecifierSet(lowest).contains(f"3.{n}")][:_NEWER]
  if not _has_wheel(jaxlib, supported[0]):
    raise MendError(f"No wheel of {jaxlib} is found for Python "
                    f"3.{supported[0]}.", "check the network")
  for minor in supported[1:]:
    if not _has_wheel(jaxlib, minor):
      return f"{lowest},<3.{minor}"
  return lowest


def _has_wheel(requirement: str, minor: int) -> bool:
  """True if the package index has a wheel of it for Python 3.`minor`."""
  with cache.scratch() as folder:
    try:
      process.run(
          [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run",
           "--no-deps", "--only-binary=:all:", f"--python-version=3.{minor}",
           "--ignore-requires-python",  # pip asks it of the running Python
           f"--target={folder}", requirement],
          what="Asking for a wheel", next_step="check the network")
    except MendError:
      return False
  return True


def _pins(found: Base, wanted: Sequence[Requirement]) -> list[str]:
  """The versions that pip picks on the oldest Python here, jaxlib first."""
  python = interpreters.for_base(found, lowest=True)
  made = venvs.of_packages(python, [str(r) for r in wanted],
                           f"what jax {found.version} needs")
  names = sorted({r.name for r in wanted}, key=lambda n: (n != "jaxlib", n))
  code = ("import importlib.metadata as m, sys\n"
          "for n in sys.argv[1:]: print(n + '==' + m.version(n))")
  out = process.run([made, "-I", "-c", code, *names],
                    what="Asking for the installed versions",
                    next_step="run the same command again")
  return out.split()


def inserted(text: str, entry: dict[str, object]) -> str:
  """The text of bases.toml with an entry where its version belongs."""
  head, *rest = re.split(f"(?m)^{re.escape(_ENTRY)}", text)
  made = tomlkit.dumps(entry)
  later = Version(str(entry["version"]))
  place = next((i for i, part in enumerate(rest)
                if Version(tomlkit.parse(part)["version"]) > later), len(rest))
  rest[place:place] = [made]
  return "\n".join(part.rstrip("\n") + "\n" for part in (
      head, *(_ENTRY + part for part in rest)))


def _look(series: Sequence[patches.Patch], base: Base) -> list[str]:
  """Shows what has to be ported or read; returns what is to be done."""
  origin = source.pristine(base)
  found = drift.states(series, base, origin)
  port = [s for s in found if s.state in _TO_PORT]
  read = [s for s in found if s.state in _TO_READ]
  for state in port:
    report.say(f"PORT: {state.edit.label}: {state.detail or state.state}")
  place = bases.all_bases().index(base)
  near = bases.all_bases()[place - 1 if place else 1]
  shown = list(_differences(series, near, base, read))
  for label, lines in shown:
    report.say(f"READ: {label}, against jax {near.version}:")
    report.say("\n".join(f"    {line}" for line in lines))
  report.say(f"Edits: {len(found)} looked at on jax {base.version}, "
             f"{len(found) - len(port) - len(read)} exact, {len(read)} to "
             f"read ({len(shown)} definitions), {len(port)} to port.")
  todo = []
  if port:
    todo.append(f"port {report.plural(len(port), 'edit')} (PORT above): "
                f"{_COMMAND} check --places; docs/patches.md")
  if read:
    todo.append(f"read {report.plural(len(shown), 'definition')} (READ above), "
                f"then {_COMMAND} check --base={base.version} --record")
  return todo


def _differences(series: Sequence[patches.Patch], near: Base, base: Base,
                 states: Sequence[drift.State],
                 ) -> Iterator[tuple[str, list[str]]]:
  """The changes of each definition, once: a label, and the lines."""
  known = dict(_definitions(series, near))
  wanted = {(s.edit.patch, drift.edit_key(s.edit)): s.edit.label
            for s in states}
  seen = set()
  for key, text in _definitions(series, base):
    old = known.get(key, "")
    if key in wanted and (old, text) not in seen:
      seen.add((old, text))
      lines = [line for line in difflib.unified_diff(
          old.splitlines(), text.splitlines(), lineterm="", n=0)
          if not line.startswith(("---", "+++", "@@"))]
      more = [f"... {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else []
      yield wanted[key], [*lines[:_SHOWN], *more]


def _definitions(series: Sequence[patches.Patch], base: Base,
                 ) -> Iterator[tuple[tuple[str, str], str]]:
  """The definition that each edit relies on, where it is found."""
  origin = source.pristine(base)
  for patch in patches.for_base(series, base):
    for edit in placing.placed(patch, base, origin):
      path: pathlib.Path = origin / edit.file
      if path.is_file():
        try:
          place = edits.locate(operations.parsed(tree.read(path)), edit)
        except syntax.NotFound:
          continue
        yield (patch.id, drift.edit_key(edit)), place.context or ""


def _sample(series: Sequence[patches.Patch], base: Base,
            ported: bool) -> list[str]:
  """Runs a sample of the tests, or what can run; returns what is to be done."""
  if not ported:
    verdict = candidate_report.check([base.version], True, False)
  else:
    _, faults = anchors.undefined(series, [base])
    for line in faults:
      report.say(f"WRONG: {line}")
    if faults:
      return [f"{report.plural(len(faults), 'fault')} of edited files on jax "
              f"{base.version} (WRONG above)"]
    verdict = testing.run_tests(testing.Request([base], extent=Extent.PLAIN))
  return [] if verdict.good else [
      f"{verdict.words} {_COMMAND} test FILE --base={base.version}: a fault of "
      "the port, or a reason that is worded otherwise there"]
