# SPDX-License-Identifier: Apache-2.0
"""Threads that wait for processes, and how many of these run side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import contextlib
import itertools
import os
from typing import TypeVar

from mend.proof import fork_servers

_A = TypeVar("_A")
_B = TypeVar("_B")


def workers() -> int:
  """The number of cores that this process may use: taskset limits a run."""
  try:
    cores = len(os.sched_getaffinity(0))
  except AttributeError:  # macOS, Windows
    cores = os.cpu_count() or 1
  return max(1, min(8, cores))


@contextlib.contextmanager
def pool() -> Iterator[concurrent.futures.Executor]:
  """Runs functions side by side; the first error ends the run, and its tests.

  One more than the cores that there are: some wait for the index, or for what
  must not end.
  """
  try:
    with concurrent.futures.ThreadPoolExecutor(workers() + 1) as made:
      try:
        yield made
      except BaseException:
        fork_servers.stopping.set()
        made.shutdown(wait=False, cancel_futures=True)
        raise
  finally:  # all of them have ended
    fork_servers.stopping.clear()


def submit_in_turn(
    executor: concurrent.futures.Executor, one: Sequence[Callable[[], _A]],
    other: Sequence[Callable[[], _B]]
) -> tuple[list[concurrent.futures.Future[_A]],
           list[concurrent.futures.Future[_B]]]:
  """Submits functions of two kinds alternately; the futures of each kind."""
  made, done = [], []
  for a, b in itertools.zip_longest(one, other):
    if a is not None:
      made.append(executor.submit(a))
    if b is not None:
      done.append(executor.submit(b))
  return made, done
