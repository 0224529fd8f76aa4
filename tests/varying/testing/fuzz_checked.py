# SPDX-License-Identifier: Apache-2.0
"""Runs one random program in four under jax.debug.check_replication, too.

Nothing that its types say is the same on all devices may differ, in the
program, in its gradient or in what is between; and with comparisons it gives
what it gives without.
"""
import warnings

import jax
import numpy as np

FEATURE = 'run: check_replication'


def wanted(seed):
  """True for one seed in four, of values and of gradients alike."""
  return seed % 8 in (2, 5) and hasattr(jax.debug, 'check_replication')


def fault(function, args, want):
  """What is wrong with a program under the check.

  Args:
    function: the program; it is right without the check.
    args: its arguments.
    want: what it gives for them.

  Returns:
    The kind of a fault and a text, or None.
  """
  try:
    with warnings.catch_warnings():  # of what it can't compare
      warnings.simplefilter('ignore', UserWarning)
      got = jax.debug.check_replication(function)(*args)
  except jax.debug.ReplicationError as e:
    return 'unsound', str(e)
  except Exception as e:  # pylint: disable=broad-except
    return 'refused', f'under check_replication: {type(e).__name__}: {e}'
  if jax.tree.structure(got) != jax.tree.structure(want):
    return 'wrong value', 'another structure under check_replication'
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
    if not np.allclose(a, b, 1e-3, 1e-4, equal_nan=True):
      return 'wrong value', f'{a} under check_replication, not {b}'
  return None
