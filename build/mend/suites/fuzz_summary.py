# SPDX-License-Identifier: Apache-2.0
"""The summary of `build.py fuzz`: counts of random programs, as a table."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import Any

ORACLE, JAXLIB = "oracle", "jaxlib"
# What the summary counts, and its headings.
KINDS = {"refused": "refused", "coarse": "typed coarser", "unsound": "unsound",
         "wrong value": "wrong values", "wrong gradient": "wrong gradients",
         "crash": "crashes, hangs", JAXLIB: "crashes of jaxlib alone",
         ORACLE: "no verdict"}
WORSE = "pristine is right"  # a heading, of those of the faults
FAULTS = tuple(k for k in KINDS if k not in (ORACLE, JAXLIB))
HEADER = ("base", "seeds", "programs", "features", *KINDS.values(), WORSE)


def row(version: str, seeds: range,
        records: Sequence[dict[str, Any]]) -> tuple[str, ...]:
  """A base's line of the summary."""
  count = collections.Counter(r["kind"] for r in records)
  features = {f for r in records for f in r["features"]}
  return (version, f"{seeds[0]} to {seeds[-1]}", str(len(records)),
          str(len(features)), *(str(count[k]) for k in KINDS),
          str(sum(r.get("worse", False) for r in records)))
