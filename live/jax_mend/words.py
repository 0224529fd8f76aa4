# SPDX-License-Identifier: Apache-2.0
"""Words that choose patches: "varying,meshes", "-array_api/nan_extrema".

A word is a family or a patch; with a "-" before it, it is left out. A name that
a family had before names it still. Words that only leave out begin with all
patches. What a chosen patch needs is added; what needs a patch that is left out
is left out, too. The project's tool reads `--patches` by this module, so it
imports nothing of jax_mend.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import difflib


_IDENTITY = "sanitizer/identity"  # a part of Mend says that it is Mend, too


class BadWords(ValueError):
  """Words that choose nothing: the text says why."""


@dataclasses.dataclass(frozen=True)
class Choice:
  """The patches that words choose, in the series' order.

  Attributes:
    patches: those that are applied.
    added: those of them that no word names, and that a named one needs.
    dropped: those that a word names or all, and that need one left out.
  """
  patches: tuple[str, ...]
  added: tuple[str, ...] = ()
  dropped: tuple[str, ...] = ()


def split(text: str) -> list[str]:
  """The words of "a, -b"."""
  return [word.strip() for word in text.split(",") if word.strip()]


def current(word: str, former: Mapping[str, str]) -> str:
  """The word, with its family's present name; see `choose`."""
  sign = word[:word.startswith("-")]
  family, slash, patch = word.removeprefix("-").partition("/")
  return f"{sign}{former.get(family, family)}{slash}{patch}"


def choose(words: Sequence[str], known: Sequence[str],
           needs: Mapping[str, Iterable[str]],
           here: Sequence[str] | None = None,
           former: Mapping[str, str] | None = None) -> Choice:
  """The patches that words choose.

  Args:
    words: such as "varying" and "-array_api/nan_extrema".
    known: the ids of all patches, in the series' order, in which what a patch
      needs stands before it.
    needs: the patches that a patch needs, by its id.
    here: those of `known` that are for this release; all of them if None.
    former: the families by the names that they had before.

  Raises:
    BadWords: a word is unknown, or what is chosen needs what is left out, or
      nothing is left.
  """
  here = [*known] if here is None else [p for p in known if p in here]
  words = [current(word, former or {}) for word in words]
  named = {word: _named(word.removeprefix("-"), known) & {*here}
           for word in words}
  out = {p for word, found in named.items() if word[0] == "-" for p in found}
  wanted = {p for word, found in named.items() if word[0] != "-"
            for p in found} - out
  if all(word[0] == "-" for word in words):
    wanted = {*here} - out
  wanted |= {_IDENTITY} & {*here} - out
  gone = _that_need(out, here, needs)
  for word in words:
    if word in gone and word not in out:
      cause = next(p for p in here if p in out and _is_needed(p, word, needs))
      raise BadWords(f"{word} needs {cause}, which is left out")
  kept = _with_needed(wanted - gone, here, needs)
  if not kept:
    raise BadWords("no patch for this release is left")
  return Choice(tuple(p for p in here if p in kept),
                tuple(p for p in here if p in kept - wanted),
                tuple(p for p in here if p in wanted & gone))


def _named(word: str, known: Sequence[str]) -> set[str]:
  """The patches that a word names: one, or those of a family."""
  found = {p for p in known if word in (p, p.partition("/")[0])}
  if not found:
    names = [*dict.fromkeys(p.partition("/")[0] for p in known), *known]
    near = difflib.get_close_matches(word, names, n=1, cutoff=.6) or [
        p for p in known if p.partition("/")[2] == word] or [
            p for p in names if len(word) > 2 and word in p][:1]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise BadWords(f"{word or '-'} is no family and no patch{hint}")
  return found


def _with_needed(wanted: set[str], here: Sequence[str],
                 needs: Mapping[str, Iterable[str]]) -> set[str]:
  found = {*wanted}
  for patch in reversed(here):  # what a patch needs stands before it
    if patch in found:
      found.update(needs.get(patch, ()))
  return found & {*here}


def _that_need(out: set[str], here: Sequence[str],
               needs: Mapping[str, Iterable[str]]) -> set[str]:
  found = {*out}
  for patch in here:
    if not found.isdisjoint(needs.get(patch, ())):
      found.add(patch)
  return found


def _is_needed(cause: str, patch: str,
               needs: Mapping[str, Iterable[str]]) -> bool:
  below = [*needs.get(patch, ())]
  return cause in below or any(_is_needed(cause, p, needs) for p in below)
