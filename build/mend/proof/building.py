# SPDX-License-Identifier: Apache-2.0
"""`build.py build`: a wheel, and then its proof.

The wheel's path is printed as soon as it is there; whether to install it is
said when every reported program has run on both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import pathlib
import shutil
import sys

from mend.editing import patches, reproductions
from mend.editing.reproductions import Reproduction
from mend.ground import cache, report
from mend.ground.errors import MendError
from mend.ground.report import Verdict
from mend.proof import environments, fork_servers, reproduce
from mend.proof.reproduce import Outcome
from mend.releases import bases, interpreters
from mend.releases.bases import Base
from mend.trees import live_wheel, tree, wheel
from packaging.version import Version

_COMMAND = "python3 build/build.py"


@dataclasses.dataclass(frozen=True)
class Request:
  """The options of a build: which wheel, where to, with which patches.

  Attributes:
    wheels: "jax" or "jax-mend".
    folder: where the wheel goes.
    python_version: such as "3.12"; None for any that fits.
    names: only these patches, and what they need; None for all.
    prove: whether to run the reports' programs.
  """
  wheels: str
  folder: pathlib.Path
  python_version: str | None = None
  names: Sequence[str] | None = None
  prove: bool = True


@dataclasses.dataclass(frozen=True)
class _Maker:
  """A kind of wheel: the functions that make and prove it."""
  make: Callable[[Base, Sequence[patches.Patch], str], pathlib.Path]
  prove: Callable[[Base, Sequence[patches.Patch], str, fork_servers.Sharing],
                  tuple[Sequence[Outcome], Sequence[Outcome]]]


def build_wheels(request: Request, chosen: Sequence[Base]) -> Verdict:
  """Builds the wheel of each base and proves it there."""
  makers = {"jax": _Maker(_jax, _prove_jax),
            "jax-mend": _Maker(_jax_mend, _prove_jax_mend)}
  if request.wheels not in makers:
    raise MendError(
        f"--wheels={request.wheels} is not built here, only "
        f"{' and '.join(makers)}; the stock jaxlib is used.",
        f"{_COMMAND} build --wheels=jax")
  tree.require_writable(request.folder)
  # Now, not after the build.
  request.folder.mkdir(parents=True, exist_ok=True)
  good = [_build(base, request, makers[request.wheels]) for base in chosen]
  named = ", ".join(b.version for b in chosen)
  if not all(good):
    return Verdict(f"a wheel for jax {named} is not proven.",
                   f"see FAIL under `mended` above; {_COMMAND} test --base=V")
  return Verdict(f"{request.wheels} built for {named}"
                 + (" and proven." if request.prove else "."))


def chosen_series(names: Sequence[str] | None,
                  base: Base | None) -> Sequence[patches.Patch]:
  """The patches that words choose of those for a release, or of all."""
  series = patches.load()
  return series if names is None else patches.select(series, names, base)


def _build(base: Base, request: Request, maker: _Maker) -> bool:
  python = interpreters.for_base(base, request.python_version)
  series = chosen_series(
      request.names, base if request.wheels == "jax" else None)
  made = maker.make(base, series, python)
  final = deliver(made, request.folder)
  report.say(f"Wheel: {final}")
  if request.prove:
    items = reproductions.collect(patches.for_base(series, base))
    with reproduce.servers() as servers:
      before, after = maker.prove(base, series, python, servers)
    rows = reproduce.proof_rows(items, before, after)
    _show(rows, after, _table_file(final, base), made.name, base)
    if not _good(items, before, after, request.names is not None):
      report.say(f"Not proven; don't install it: {final}")
      return False
  report.say(f"Install it: python3 -m pip install '{final}'\n")
  return True


def deliver(made: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
  """Copies a wheel to `folder`; one of its name with other content is kept."""
  folder.mkdir(parents=True, exist_ok=True)
  final = folder / made.name
  if final.exists() and cache.sha256(final) != cache.sha256(made):
    aside = folder / "replaced" / cache.sha256(final)[:8] / made.name
    aside.parent.mkdir(parents=True, exist_ok=True)
    final.replace(aside)
    report.say(f"An older {made.name} with other content is now {aside}")
  with cache.whole(final) as whole:
    shutil.copyfile(made, whole)
  return final


def _jax(base: Base, series: Sequence[patches.Patch],
         python: str) -> pathlib.Path:
  return wheel.mended(patches.for_base(series, base), base, python)


def _prove_jax(base: Base, series: Sequence[patches.Patch], python: str,
               servers: fork_servers.Sharing,
               ) -> tuple[Sequence[Outcome], Sequence[Outcome]]:
  series = patches.for_base(series, base)
  made = environments.build(base, series=series, python=python, kind="proof")
  items = reproductions.collect(series)
  before = reproduce.remembered(items, made.pristine, f"jax {base.version}",
                                servers, base)
  return before, reproduce.remembered(items, made.mended,
                                      f"jax {base.mended}", servers, base)


def _jax_mend(base: Base, series: Sequence[patches.Patch],
              python: str) -> pathlib.Path:
  del base, python
  return live_wheel.wheel(series)


def _prove_jax_mend(base: Base, series: Sequence[patches.Patch], python: str,
                    servers: fork_servers.Sharing,
                    ) -> tuple[Sequence[Outcome], Sequence[Outcome]]:
  mended = environments.with_jax_mend(base, series, python=python, kind="proof")
  pristine = environments.pristine_only(base, python, kind="proof")
  items = reproductions.collect(patches.for_base(series, base))
  before = reproduce.remembered(items, pristine, f"jax {base.version}",
                                servers, base)
  return before, reproduce.remembered(
      items, mended, f"jax {base.version}, jax-mend", servers, base,
      environments.jax_mend_settings(mended))


_HEADER = ("report", "regression", "pristine", "mended")


def _table_file(wheel_file: pathlib.Path, base: Base) -> pathlib.Path:
  """The file beside a wheel that has the table of its proof on a release."""
  name = "-".join(wheel_file.name.split("-")[:2])
  if f"-{base.version}+" not in name:  # jax-mend's, which is of all releases
    name += f"-jax-{base.version}"
  return wheel_file.with_name(f"{name}-proof.md")


def _show(rows: Sequence[Sequence[str]], after: Sequence[Outcome],
          file: pathlib.Path, name: str, base: Base) -> None:
  """Keeps the table of a proof; prints the rows that fail, or all of them.

  Args:
    rows: the table.
    after: the outcomes on the mended side.
    file: where it goes.
    name: of the wheel.
    base: the release.
  """
  title = f"{name} against jax {base.version}"
  with cache.whole(file) as made:
    made.write_text(f"# {title}\n\n{report.table(_HEADER, rows)}\n",
                    encoding="utf-8")
  shown = [row for row, outcome in zip(rows, after)
           if report.verbose or outcome.status == reproduce.FAIL]
  if shown:
    report.say(f"\n{title}:\n")
    report.show(_HEADER, shown)
  report.say(f"\nEach regression, before and after: {file}")


def say_what_is_newer(chosen: Base) -> None:
  """Says which newer releases this Python keeps from being the default."""
  newer = [b for b in bases.releases()
           if Version(b.version) > Version(chosen.version)]
  if not newer:
    return
  running = ".".join(str(n) for n in sys.version_info[:3])
  needs = ", ".join(f"{b.version} needs Python {bases.pythons(b)}"
                    for b in dict.fromkeys((newer[0], newer[-1])))
  report.say(f"jax {chosen.version} is the newest release that Python "
             f"{running} can have, so it is chosen; {needs}. --base=V builds "
             "another one, with such a Python if there is one here.")


def _good(items: Sequence[Reproduction], before: Sequence[Outcome],
          after: Sequence[Outcome], partly: bool) -> bool:
  """Prints the counts of a proof; whether no regression is left."""
  failed = sum(o.status == reproduce.FAIL for o in after)
  report.say(f"Proof: {len(items)} regressions, "
             f"{sum(o.status == reproduce.FAIL for o in before)} fail on "
             f"pristine, {failed} on mended.")
  return not failed and bool(items or partly)
