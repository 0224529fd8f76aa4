# SPDX-License-Identifier: Apache-2.0

"""The option to admit collectives that some devices may not reach.

It is a module of its own because jax itself imports it: an option must be known
before ``jax.experimental.shard_map``, which uses it, is imported.
"""

from __future__ import annotations

from jax._src import config

allow = config.bool_state(
    name='jax_allow_divergent_collectives', default=False,
    help=('Inside shard_map with check_rep=True, admit collectives in loops '
          'and branches whose predicate is typed as varying over the same mesh '
          'axis. They deadlock or mix values unless the predicate is in fact '
          'the same on all devices along that axis.'),
    include_in_jit_key=True)
