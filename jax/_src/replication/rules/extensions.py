# SPDX-License-Identifier: Apache-2.0
"""Rules for the primitives that other libraries define (jax#27664).

``shard_map`` of 0.5.3 refuses a primitive that nobody entered a rule for, and
hardly any library did: equinox's loops end in ``No replication rule for
select_if_vmap``, lineax's solvers in ``... for linear_solve``. A primitive
whose abstract evaluation rule was not defined in the package ``jax`` gets the
standard rules when they are first missed: its results are the same on those
devices on which all operands are.

A primitive without operands is still refused: nothing says whether its results
are the same on all devices.

Limits: a collective of another library is right, but its results count as
different on all devices; one that tells devices apart by no operand of those
that it has needs rules of its own
(``jax.experimental.shard_map.register_check``).
"""
from __future__ import annotations

import functools

from jax._src import core
from jax._src.mend import foreign
from jax._src.replication.rules import flow
from jax._src.replication.rules import lookup
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm


# The standard rules of 0.5.3 have names that a library's parameters may have.

def _check(prim, mesh, /, *in_rep, **_):
  if not in_rep:
    lookup.raise_no_rule(prim)
  return sm._standard_check(prim, mesh, *in_rep)


def _rewrite(prim, mesh, in_rep, /, *args, **params):
  if not args:
    lookup.raise_no_rule(prim)
  out_rep = set(mesh.axis_names).intersection(*in_rep)
  args = [type_rules.promote(mesh, x, r, out_rep) for x, r in zip(args, in_rep)]
  outs = prim.bind(*args, **params)
  outs = outs if prim.multiple_results else [outs]
  return outs, [out_rep] * len(outs)


def enter(prim: core.Primitive) -> None:
  """Enters the standard rules of ``prim`` if another library defined it."""
  if foreign.is_foreign_primitive(prim):
    sm._check_rules.setdefault(prim, functools.partial(_check, prim))
    sm._rewrite_rules.setdefault(prim, functools.partial(_rewrite, prim))


flow.standard_checks.add(_check)
lookup.others.append(enter)
