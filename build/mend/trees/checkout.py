"""A git checkout of jax: its tests, Bazel files and change log.

A source distribution has no tests, Bazel files or change log; a checkout has.
There, the series also brings its tests to upstream's folder, which has no
folders in it and so other names for them, names its modules
and tests to Bazel, and puts its bullets into the change log's section for what
is not released yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import pathlib
import re
import textwrap

from mend.editing import patches
from mend.trees import starlark

CHANGELOG = "CHANGELOG.md"
TESTS_BUILD = "tests/BUILD"
_BAZEL = ("BUILD", "BUILD.bazel")
_TEST_RULE = "jax_multiplatform_test"
_UNRELEASED = "## Unreleased"


def tests(mine: Sequence[patches.Patch]) -> dict[str, tuple[str, ...]]:
  """The series' test files, each with the modules that it shares."""
  return {test: patch.test_helpers for patch in mine
          for test in (*patch.tests, *patch.unit_tests)}


def test_texts(mine: Sequence[patches.Patch],
               root: pathlib.Path) -> dict[str, str]:
  """The test files and the modules that they share, as upstream has them.

  Returns:
    Path in upstream's tree -> text. Lines that import a shared module name it
    as it is called there.
  """
  names = {ours: theirs for p in mine
           for ours, theirs in p.upstream_names.items()}
  modules = {_dotted(ours): pathlib.PurePath(theirs).stem
             for ours, theirs in names.items()}
  line = re.compile(rf"^(\s*(?:from|import) )({'|'.join(modules)})\b(?!\.)",
                    re.MULTILINE)
  found = {}
  for ours, theirs in names.items():
    with open(root / ours, encoding="utf-8", newline="") as handle:
      found[theirs] = line.sub(lambda m: m[1] + modules[m[2]], handle.read())
  return found


def _dotted(file: str) -> str:
  """The name by which a module below tests/ is imported."""
  inside = pathlib.PurePosixPath(file).relative_to("tests").with_suffix("")
  return ".".join(inside.parts)


def edited(mine: Sequence[patches.Patch], tree: pathlib.Path,
           already: Mapping[str, str]) -> dict[str, str]:
  """The checkout's change log and Bazel files with the series in them.

  Args:
    mine: the patches for the base.
    tree: the checkout.
    already: text files that the patches themselves edited.

  Returns:
    file name -> whole new text, of those files only that the tree has.
  """
  texts = _Texts(tree, already)
  sent = [p for p in mine if p.upstream.status != "fork-only"]
  log = texts.get(CHANGELOG)
  if log is not None:
    for patch in sent:
      log = add_bullet(log, patch.changelog)
    texts.new[CHANGELOG] = log
  for patch in mine:
    for module in patch.modules:
      _name_to_bazel(texts, module, _importers(patch, module))
  for patch in mine:
    for test in (*patch.tests, *patch.unit_tests):
      _name_test(texts, patch.upstream_names[test],
                 [patch.upstream_names[h] for h in patch.test_helpers])
  return {name: text for name, text in texts.new.items()
          if text != texts.old.get(name)}


class _Texts:
  """The text files of a tree, as they are by now."""

  def __init__(self, tree: pathlib.Path, already: Mapping[str, str]):
    self.tree = tree
    self.old: dict[str, str] = {}
    self.new = dict(already)

  def get(self, name: str) -> str | None:
    if name not in self.new:
      path = self.tree / name
      if not path.is_file():
        return None
      with open(path, encoding="utf-8", newline="") as handle:
        self.old[name] = self.new[name] = handle.read()
    return self.new[name]


def add_bullet(log: str, changelog: str) -> str:
  """Puts `Kind: words` as a bullet under what is not released yet."""
  kind, _, words = changelog.partition(":")
  first = re.search(r"^## ", log, re.MULTILINE)
  at = first.start() if first else len(log)
  if not log[at:].startswith(_UNRELEASED):
    log = f"{log[:at]}{_UNRELEASED}\n\n{log[at:]}"
  begin = at + len(_UNRELEASED)
  following = re.compile(r"^## ", re.MULTILINE).search(log, begin)
  stop = following.start() if following else len(log)
  section = log[begin:stop].rstrip()
  bullet = textwrap.fill(
      words.strip(), width=80, initial_indent="  * ",
      subsequent_indent="    ", break_long_words=False,
      break_on_hyphens=False)
  head = re.search(rf"^\* {re.escape(kind)}:?[ ]*$", section,
                   re.MULTILINE | re.IGNORECASE)
  if head is None:
    section += f"\n\n* {kind}\n{bullet}"
  else:
    after = re.compile(r"^\* ", re.MULTILINE).search(section, head.end())
    end = len(section[:after.start()].rstrip()) if after else len(section)
    section = f"{section[:end]}\n{bullet}{section[end:]}"
  return f"{log[:begin]}{section}\n\n{log[stop:]}"


def _importers(patch: patches.Patch, module: str) -> list[str]:
  """Upstream's files that the patch makes import `module`, in edit order."""
  stem = pathlib.PurePath(module).stem
  if stem == "__init__":
    stem = pathlib.PurePath(module).parent.name
  word = re.compile(rf"import\b.*\b{stem}\b|\b{stem}\b.*\bimport\b")
  files = [e.file for e in patch.edits]
  return [e.file for e in patch.edits if word.search(e.code)] or files


def _package(texts: _Texts, file: str) -> str | None:
  """The Bazel file that `file` belongs to."""
  for folder in pathlib.PurePosixPath(file).parents:
    for name in _BAZEL:
      path = str(folder / name)
      if texts.get(path) is not None:
        return path
  return None


def _holder(texts: _Texts, build: str, file: str) -> str | None:
  """The target of `build` whose sources hold `file`."""
  inside = str(pathlib.PurePosixPath(file).relative_to(
      pathlib.PurePosixPath(build).parent))
  for target in starlark.targets(texts.get(build) or ""):
    if "librar" in target.rule and target.holds(inside):
      return target.name
  return None


def _name_to_bazel(texts: _Texts, module: str,
                   importers: Sequence[str]) -> None:
  """Adds `module` to the target of the file that imports it.

  That makes it part of what every user of that target runs with. Which
  targets it needs itself is for upstream's type checker and a person to say.
  """
  build = _package(texts, module)
  if build is None or _holder(texts, build, module):
    return
  folder = str(pathlib.PurePosixPath(build).parent)
  near = [f for f in importers if _package(texts, f) == build]
  held = [t for t in (_holder(texts, build, f) for f in near) if t]
  names = [t.name for t in starlark.targets(texts.get(build) or "")]
  for target in (*held, "jax", "api"):
    if target in names:
      inside = str(pathlib.PurePosixPath(module).relative_to(folder))
      texts.new[build] = starlark.add_source(
          texts.get(build) or "", target, inside)
      return


def _name_test(texts: _Texts, test: str, helpers: Sequence[str]) -> None:
  """A Bazel target for a test file, with what JAX's own tests run on."""
  build = texts.get(TESTS_BUILD)
  file = pathlib.PurePosixPath(test).name
  if build is None or _TEST_RULE not in build:
    return
  if any(t.holds(file) for t in starlark.targets(build)
         if t.rule.endswith("_test")):
    return
  names = [file, *(pathlib.PurePosixPath(h).name for h in helpers)]
  sources = ", ".join(f'"{name}"' for name in names)
  main = f'    main = "{file}",\n' if helpers else ""
  more = [t.name for t in starlark.targets(texts.get("jax/BUILD") or "")]
  experimental = '["//jax:experimental"] + ' if "experimental" in more else ""
  texts.new[TESTS_BUILD] = build.rstrip("\n") + (
      f'\n\n{_TEST_RULE}(\n    name = "{file.removesuffix(".py")}",\n'
      f'    srcs = [{sources}],\n{main}    deps = {experimental}'
      'py_deps("absl/testing") + py_deps("numpy"),\n)\n')
