# SPDX-License-Identifier: Apache-2.0
"""Has constants hoisted or not, however a release is told."""
import contextlib
from unittest import mock

import jax
from jax._src import array
from jax._src import config
from jax._src import core
from jax._src.interpreters import mlir

# Older releases have all constants in the module, and 0.7.2 and 0.8.0 raise a
# TypeError about lists where they hoist.
CAN_HOIST = (hasattr(mlir.LoweringParameters, 'hoist_constants_as_args')
             and not (0, 7, 2) <= jax.__version_info__ < (0, 8, 1))


@contextlib.contextmanager
def hoisting(on):
  """Within it, constants of more than 8 bytes are operands if `on`.

  Args:
    on: whether they are.

  Yields:
    The parameters to lower with, or None on a release that can't hoist.
  """
  if not CAN_HOIST:
    yield None
    return
  with contextlib.ExitStack() as stack:
    stack.enter_context(config.use_simplified_jaxpr_constants(on))
    if hasattr(config, 'embedded_constants_max_bytes'):
      stack.enter_context(config.embedded_constants_max_bytes(8))
    elif on:  # any size, of types that are chosen when jax is imported
      stack.enter_context(mock.patch.object(
          core, 'literalable_types',
          core.literalable_types | {array.ArrayImpl}))
    yield mlir.LoweringParameters(hoist_constants_as_args=on)
