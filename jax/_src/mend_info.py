# SPDX-License-Identifier: Apache-2.0

"""Says what a mended wheel is: its base, its version and its patches.

`jax.__version__` stays the base's, since other packages parse it by hand, so
this is the one place where an installed wheel tells that it is a fork. The
facts are written by the build into `jax._src.mend_manifest`.
"""

from __future__ import annotations

import textwrap

from jax._src import mend_manifest


def describe() -> str:
  """Returns lines for `jax.print_environment_info`: version and patches."""
  patches = textwrap.fill(
      ', '.join(mend_manifest.PATCHES), width=72, subsequent_indent=' ' * 8,
      break_on_hyphens=False)
  return (f'mend:   {mend_manifest.VERSION} (base {mend_manifest.BASE}, '
          f'sha256 {mend_manifest.BASE_SHA256[:12]})\n'
          f'patches: {patches}')
