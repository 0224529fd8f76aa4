# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend status`: the installed jax, and what is applied to it."""

from __future__ import annotations

import collections
from collections.abc import Sequence
import json
import os
import shutil
import sys
from typing import Any

from jax_mend import asked, installed, startup_file, store
from jax_mend import table as tables
from jax_mend.errors import NotApplied


def gather() -> dict[str, Any]:
  """Facts about this Python; "error" says why jax is not mended."""
  facts: dict[str, Any] = {
      "version": None, "python": sys.executable, "jax": None, "folder": None,
      "state": "not applied", "error": None, "files": 0, "modules": 0,
      "patches": [], "words": "", "added": [], "dropped": [], "left_out": [],
      "cache": store.root(),
      "enabled": startup_file.is_enabled()}
  try:
    installed.require_files()
    facts["version"] = tables.index()["version"]
    facts["knows"] = list(tables.index()["bases"])
    jax = installed.find()
    facts.update(jax=jax.version, folder=jax.folder)
    if jax.by_wheel:
      facts["state"] = "mended by its wheel"
      return facts
    table = installed.table_for(jax)
    facts["state"] = "off" if asked.is_off() else "mended"
  except NotApplied as e:
    facts.update(error=e.what, next=e.next_step)
    return facts
  titles = tables.index()["patches"]
  facts.update(
      key=table.key, files=len(table.files), modules=len(table.modules),
      words=asked.source() if asked.words() else "",
      added=table.choice.added, dropped=table.choice.dropped,
      left_out=[p for p in table.whole if p not in table.patches],
      patches=[{"id": p, "title": titles[p]["title"],
                "issues": titles[p]["issues"]} for p in table.patches])
  return facts


def _lines(facts: dict[str, Any], verbose: bool) -> list[str]:
  lines = [f"jax-mend {facts['version']}, Python {facts['python']}"]
  if facts["jax"]:
    lines.append(f"jax {facts['jax']} in {facts['folder']}")
  if facts["state"] == "mended by its wheel":
    lines.append("This jax was mended when its wheel was built: nothing to do.")
  elif facts["error"]:
    lines.append(f"Not applied: {facts['error']}\nNext: {facts['next']}")
  else:
    lines += _applied(facts, verbose)
  return lines


def _applied(facts: dict[str, Any], verbose: bool) -> list[str]:
  lines = [f"{facts['files']} files to edit, each the release's own; "
           f"{facts['modules']} modules to add.", _how(facts)]
  kept = os.path.join(facts["cache"], facts["key"])
  lines.append(f"{kept} {_has(kept)}")
  if verbose:
    lines += ["", *(" ".join(["  " + p["title"], *(
        [f"({', '.join(p['issues'])})"] if p["issues"] else [])])
                    for p in facts["patches"]), ""]
  lines.append(f"{_counted([p['id'] for p in facts['patches']])}"
               + ("." if verbose else "; --verbose names each."))
  return lines + (_of_part(facts, verbose) if facts["words"] else [])


def _counted(patches: Sequence[str]) -> str:
  families = collections.Counter(p.partition("/")[0] for p in patches)
  return f"{len(patches)} patches (" + ", ".join(
      f"{n} of {name}" for name, n in families.items()) + ")"


def _of_part(facts: dict[str, Any], verbose: bool) -> list[str]:
  """Names the patches that words add and drop, and those not applied."""
  lines = [f"Chosen by {facts['words']}."]
  for text, key in (("Added, since these need them", "added"),
                    ("Left out, since they need what is", "dropped")):
    if facts[key]:
      lines.append(f"{text}: {', '.join(facts[key])}.")
  if left := facts["left_out"]:
    said = ", ".join(left) if verbose else _counted(left)
    lines.append(f"Not applied: {said}.")
  return lines


def _has(kept: str) -> str:
  """One sentence about the cache of a table's byte code."""
  if os.path.isdir(kept):
    return "has the byte code and the text that runs."
  try:  # permissions don't tell: the owner may be root, the disk read-only
    made = kept
    while not os.path.exists(os.path.dirname(made)):
      made = os.path.dirname(made)
    os.makedirs(kept)
    shutil.rmtree(made)
  except OSError:
    return ("can't be written: each import of jax compiles anew. Name another "
            "folder by JAX_MEND_CACHE.")
  return "will have the byte code and the text that runs."


def _how(facts: dict[str, Any]) -> str:
  if facts["state"] == "off":
    return f"Off: JAX_MEND={os.environ['JAX_MEND']} is set."
  if facts["enabled"]:
    return "Active in every Python of this environment (enabled)."
  return ("Active where a program imports jax_mend before jax, or is started "
          "by python -m jax_mend run.")


def show(as_json: bool, verbose: bool = False) -> int:
  """Prints it; 1 if jax is not mended here."""
  facts = gather()
  print(json.dumps(facts, indent=1) if as_json else
        "\n".join(_lines(facts, verbose)))
  return 0 if facts["state"] in ("mended", "mended by its wheel") else 1
