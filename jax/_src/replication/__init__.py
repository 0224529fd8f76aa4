# SPDX-License-Identifier: Apache-2.0
"""Replication in a ``shard_map``, of the releases that have ``check_rep``.

``rules`` complete both of upstream's tables, of check rules and of rewrite
rules; they stand on ``pvary``, a cast that 0.5.3 lacks, and on
``divergence_option``. ``eager_calls`` and ``eager_transfers`` are about
``shard_map`` without ``jit``, the latter on later releases as well. Begin with
``rules``, in it with ``flow``. ``cotangents`` is about gradients up to 0.5.2.

Words: a value is *replicated* along an axis if its type says that devices along
it have the same; it *varies* if not, and *differs* if the devices may really
have other values. To *check* finds the types of results, by a rule of
upstream's table; to *rewrite* evaluates an equation and gives the types with
it, by one of the other table; to *infer* finds flows, on which types depend; to
*summarize* infers those of a whole jaxpr; to *cast* makes a value vary along
more axes; to *erase* a cast takes it out; to *reduce* makes a value replicated;
to *enter* a rule puts it into a table; devices *diverge* where a
predicate differs between them; to *guard* a collective, and to *refuse*, raise
an error that says what to write.
"""
from __future__ import annotations

from jax._src.mend import releases

# In the order in which they are entered: those that are about collectives
# first, for the others' sake, and those that change others' rules after them.
RULES = ('standard', 'collectives', 'divergence', 'refine', 'loops', 'custom',
         'branches', 'linear', 'reductions', 'proven', 'complete', 'refs',
         'equal', 'nested', 'extensions', 'pvary', 'mapped')


def enter_rules() -> None:
  """Fills shard_map's tables of rules, and ``flow``'s, at shard_map's end.

  As upstream's modules do, each enters the rules of its primitives when it is
  imported. A build of some patches only lacks modules.
  """
  for name in RULES:
    releases.optional_module(f'{__name__}.rules.{name}')
