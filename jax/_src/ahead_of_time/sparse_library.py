# SPDX-License-Identifier: Apache-2.0
"""The library that a GPU's tridiagonal solve is lowered with, up to 0.6.0.

Its kernel works in a buffer, whose size is a part of the lowered program: the
lowering asks cuSPARSE or hipSPARSE for it, through the GPU's plugin. From 0.6.1
on the kernel asks when it runs, so that any machine can lower it. No size that
is right on the GPU can be found without the library. The program for a TPU, an
elimination without pivots, runs anywhere, but where a pivot is zero it would
give nan for what the GPU solves. So the lowering is refused.

Cost: one look-up for each lowering.
"""
from __future__ import annotations

from jax._src.lib import gpu_sparse
from jax._src.mend import pages

# The prefix of a kernel's name -> platform, jaxlib's name for its library, and
# what to install for it.
_LIBRARIES = {
    'cu': ('cuda', '_cusparse', 'jax[cuda12]'),
    'hip': ('rocm', '_hipsparse', 'the plugin for ROCm'),
}


def check(prefix: str) -> None:
  """Refuses to lower a tridiagonal solve without the GPU's library.

  Args:
    prefix: begins the name of the platform's kernels.

  Raises:
    NotImplementedError: the library isn't there.
  """
  platform, library, package = _LIBRARIES[prefix]
  if getattr(gpu_sparse, library) is None:
    raise NotImplementedError(
        f'jax.lax.linalg.tridiagonal_solve: lowering for {platform} expected '
        'the sparse library of the GPU, which tells the size of a buffer, and '
        f'got a process without its plugin. Install {package} and lower on a '
        'machine with such a GPU, lower for other platforms only, or use '
        'jax 0.6.1 or later, which asks the library when the program runs.' +
        pages.see('ahead_of_time.md#what-can-be-lowered'))
