# SPDX-License-Identifier: Apache-2.0
"""The minutes that README's test command takes, by its last noted run.

In the processor's seconds, which other programs of a machine don't change: two
cores share them. `test --write` notes its run, and writes README's number.
"""

from __future__ import annotations

import json
import pathlib
import re

from mend.ground.errors import MendError
from mend.releases import bases

FILE = "build/test_run.json"
_CORES = 2
_SAID = re.compile(r"\((\d+) minutes on two cores")


def processor_seconds() -> float:
  """The processor time of this process and of its finished children."""
  try:
    import resource
  except ImportError:  # Windows
    raise MendError("This system doesn't count its processes' time.",
                    "leave --write away") from None
  used = [resource.getrusage(who) for who in (
      resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
  return sum(u.ru_utime + u.ru_stime for u in used)


def note(root: pathlib.Path = bases.ROOT) -> None:
  """Notes the run that ends, and writes README's minutes."""
  seconds = round(processor_seconds())
  (root / FILE).write_text(json.dumps({"processor_seconds": seconds}) + "\n",
                           encoding="utf-8")
  readme = root / "README.md"
  text = readme.read_text(encoding="utf-8")
  readme.write_text(_SAID.sub(f"({round(noted(root))} minutes on two cores",
                              text), encoding="utf-8")


def noted(root: pathlib.Path = bases.ROOT) -> float:
  """The minutes of the last noted run on two cores."""
  data = json.loads((root / FILE).read_text(encoding="utf-8"))
  return data["processor_seconds"] / _CORES / 60


def said(root: pathlib.Path = bases.ROOT) -> int:
  """The minutes that README says."""
  found = _SAID.search((root / "README.md").read_text(encoding="utf-8"))
  if not found:
    raise MendError("README.md says no minutes of its test command.",
                    "write: (5 minutes on two cores, ...")
  return int(found[1])
