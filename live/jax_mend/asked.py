# SPDX-License-Identifier: Apache-2.0
"""Reads how jax is wanted: as it is, mended, or mended in part.

`JAX_MEND` says so: a word for on or off, or words that choose patches. Where it
is unset, the words hold that `enable --patches=WORDS` has put into the startup
file of the environment.
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
import re

from jax_mend import words as words_of
from jax_mend.errors import NotApplied

OFF = ("0", "off", "false", "no")
ON = ("", "1", "on", "true", "yes")
STORED = "# JAX_MEND="
_FILE = os.path.join(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))), "jax_mend_startup.start")


def is_off() -> bool:
  """True if JAX_MEND turns it off."""
  return os.environ.get("JAX_MEND", "").lower() in OFF


def words() -> list[str]:
  """The words that choose patches; none for all of them."""
  value = os.environ.get("JAX_MEND")
  if value is None:
    return words_of.split(_stored())
  return [] if value.lower() in ON + OFF else words_of.split(value)


@contextlib.contextmanager
def instead(text: str) -> Iterator[None]:
  """Has `text`, unless it is "", as the words that JAX_MEND has."""
  before = os.environ.get("JAX_MEND")
  if text:
    os.environ["JAX_MEND"] = text
  try:
    yield
  finally:
    if text and before is None:
      del os.environ["JAX_MEND"]
    elif text and before is not None:
      os.environ["JAX_MEND"] = before


def source() -> str:
  """The place that the words are from, with them, for messages."""
  value = os.environ.get("JAX_MEND")
  return (f"JAX_MEND={value}" if value is not None else
          f"{_FILE}: {_stored()}")


def refused(error: words_of.BadWords) -> NotApplied:
  """The error for words that choose nothing."""
  return NotApplied(
      f"{source()}: {error}.",
      "JAX_MEND=0 runs jax as it is installed, JAX_MEND=1 has all of it "
      "mended, and JAX_MEND=A,B or JAX_MEND=-A a part: families and patches "
      "as python -m jax_mend status --verbose lists them (JAX_MEND=1 before "
      "it)")


def _stored() -> str:
  try:
    with open(_FILE, encoding="utf-8") as handle:
      found = re.search(rf"^{STORED}(.*)$", handle.read(), re.MULTILINE)
  except OSError:
    return ""
  return found[1] if found else ""
