# SPDX-License-Identifier: Apache-2.0
"""Makes splices; the project's tool does, too, by this module alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def spliced(data: bytes, splices: Sequence[Sequence[Any]]) -> bytes:
  """`data` with each splice [start, stop, text, ...] made, in their order."""
  out, position = [], 0
  for start, stop, text, *_ in splices:
    out += [data[position:start], text.encode("utf-8")]
    position = stop
  return b"".join([*out, data[position:]])
