# SPDX-License-Identifier: Apache-2.0
"""Finding a primitive's rules, also when its module was imported later.

``shard_map`` cannot import every module that defines a primitive (sparse
arrays, Pallas, cuDNN, export). Their rules are entered when a rule is first
missed: modules that have been imported by then are gone through.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
import sys

from jax._src import core
from jax._src.mend import foreign
from jax._src.mend import pages

# module -> function that enters the rules of its primitives
_pending = {}

# Asked for the rules of a primitive that none were entered for.
others: list[Callable[[core.Primitive], None]] = []

# primitive's name -> why there is no rule, or where it is dealt with instead
reasons: dict[str, str] = {}


def when_imported(module: str, enter):
  """Calls `enter(module)` once a rule is missed and `module` is imported."""
  _pending[module] = enter


def enter_loaded() -> None:
  for name in [n for n in _pending if n in sys.modules]:
    _pending.pop(name)(sys.modules[name])


def find(table, prim: core.Primitive):
  """Returns the rule of `prim` in one of the tables of shard_map, or None."""
  if prim not in table:
    enter_loaded()
  if prim not in table and foreign.name_of(prim) not in reasons:
    for enter in others:
      enter(prim)
  return table.get(prim)


def raise_no_rule(prim, /, *_, **__):
  """Raises the error for a primitive without a rule."""
  if foreign.name_of(prim) in reasons:
    raise NotImplementedError(
        f'shard_map with check_rep=True cannot type the primitive {prim}: '
        f'{reasons[prim.name]}. As a workaround, pass the `check_rep=False` '
        'argument to `shard_map`.' +
        pages.see('replication.md#what-has-no-rule'))
  raise NotImplementedError(
      f'No replication rule for {prim}. Expected one entered by '
      '`jax.experimental.shard_map.register_standard_check` and '
      '`register_standard_rewrite` (for a primitive that computes from its '
      'operands on each device alone). As a workaround, pass the '
      '`check_rep=False` argument to `shard_map`.' +
      pages.see('replication.md#what-has-no-rule'))


def rule(table, prim):
  return find(table, prim) or functools.partial(raise_no_rule, prim)
