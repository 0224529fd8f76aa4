# SPDX-License-Identifier: Apache-2.0
"""A copy of an installed jax in which one file at a time is a mutant's."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import pathlib
import shutil

from mend.trees import tree


class Overlay:
  """A copy made of hard links.

  Args:
    jax: the package's folder, which stays as it is.
    folder: where the copy is made.
  """

  def __init__(self, jax: pathlib.Path, folder: pathlib.Path):
    self._original, self.folder = jax, folder
    shutil.copytree(jax, folder / "jax", copy_function=os.link)

  @contextlib.contextmanager
  def holding(self, file: str, text: str) -> Iterator[None]:
    """Within the block, the copy's file has this text."""
    path = self.folder / file
    path.unlink()
    tree.write(path, text)
    try:
      yield
    finally:
      path.unlink()
      os.link(self._original.parent / file, path)
