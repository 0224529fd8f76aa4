# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

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
