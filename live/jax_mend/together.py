# SPDX-License-Identifier: Apache-2.0
"""Has several processes of one program compared in step, each by its own.

Each rank of a `jax.distributed` program is started under `compare`, with
`--rank=K/N` and one folder, `--meet=DIR`, which all of them see. Before each
run they wait for each other there, and after it tell each other what they have
found, so that all decide alike whether to run again and without which patches.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

from jax_mend.errors import Refused

_WAIT = .05


class Alone:
  """One process, which waits for nobody."""

  def gather(self, mine: Any) -> list[Any]:
    return [mine]


class Together:
  """One of several processes.

  Args:
    rank: of this one, from 0.
    of: how many there are.
    folder: new or empty as the first of them starts.
    limit: seconds to wait for the others.
  """

  def __init__(self, rank: int, of: int, folder: str, limit: float):
    self._rank, self._of, self._limit = rank, of, limit
    self._folder, self._round = folder, 0
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(self._path(rank)):
      raise Refused(f"{folder} has a meeting in it already.",
                    "name a new folder: --meet=DIR")

  def _path(self, rank: int) -> str:
    return os.path.join(self._folder, f"{self._round}-{rank}.json")

  def gather(self, mine: Any) -> list[Any]:
    """Returns the word of each process, by rank, when all have come.

    Raises:
      Refused: one of them didn't come.
    """
    scratch = self._path(self._rank) + ".part"
    with open(scratch, "w", encoding="utf-8") as file:
      json.dump(mine, file)
    os.replace(scratch, self._path(self._rank))
    until, found = time.monotonic() + self._limit, []
    for rank in range(self._of):
      while not os.path.exists(self._path(rank)):
        if time.monotonic() > until:
          raise Refused(f"rank {rank} did not come to {self._folder} within "
                        f"{self._limit:g} s.", "start it with --rank="
                        f"{rank}/{self._of} and the same --meet=DIR")
        time.sleep(_WAIT)
      with open(self._path(rank), encoding="utf-8") as file:
        found.append(json.load(file))
    self._round += 1
    return found
