# SPDX-License-Identifier: Apache-2.0
"""The module by which an installed wheel knows what it is."""

from __future__ import annotations

from collections.abc import Sequence

from mend.editing import patches
from mend.releases.bases import Base

FILE = "jax/_src/mend_manifest.py"
TEXT = '''\
"""What this build of JAX is: written by Mend, not by hand."""

BASE = "{base}"
BASE_SHA256 = "{sha256}"
VERSION = "{version}"
PATCHES = (
{patches})
'''


def text(base: Base, mine: Sequence[patches.Patch], version: str) -> str:
  """The manifest's text.

  Args:
    base: the release.
    mine: the patches that are applied to it.
    version: the wheel's.
  """
  return TEXT.format(base=base.version, sha256=base.sha256, version=version,
                     patches="".join(f'    "{p.id}",\n' for p in mine))
