# SPDX-License-Identifier: Apache-2.0
"""Rewriting a jaxpr to given replication types, once."""
from __future__ import annotations

from jax._src.mend import pages

from jax.experimental import shard_map as sm


def closed_jaxpr(what, mesh, jaxpr, in_rep, out_rep):
  """Returns `jaxpr` rewritten to take and return the given types.

  Args:
    what: the public function that the jaxpr belongs to, for the error.
    mesh: the mesh of the shard_map.
    jaxpr: a closed jaxpr, not yet rewritten.
    in_rep: per input, the set of axes along which it is replicated.
    out_rep: the same for the outputs, as the flow rules found it.

  Raises:
    AssertionError: if a rewrite rule in the jaxpr gave a value a type that
      varies along more axes than the flow rules say, which is a mistake in
      one of the two.
  """
  try:
    return sm._replication_rewrite_match(mesh, jaxpr, in_rep, out_rep)
  except sm._RepError as e:
    raise AssertionError(
        f'{what} in shard_map: the rewrite of {jaxpr} gave an output varying '
        f'along more mesh axes than its type {out_rep} allows. This is a '
        'defect in the rules of jax/_src/replication, please report it; '
        'check_rep=False works around it.' +
        pages.see('replication.md#limits')) from e
