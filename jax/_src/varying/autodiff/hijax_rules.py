# SPDX-License-Identifier: Apache-2.0
"""Custom derivative rules that operations hold, in loops and branches.

With ``jax_custom_vjp3`` and ``jax_custom_jvp3`` an application of a function
that has derivative rules is an operation that holds the traced function, the
rules, and the types of its operands (``hijax`` re-types those that hold
nothing but types). Where an operand is promoted, so is the traced function, as
in a call. The rules are made from the user's for certain types, that they
check; they are made once more, for the new ones. (Before 0.12 an operation
holds the user's own, and ``hijax`` is enough.)

Limits: what ``vmap`` makes of such an operation, one with residuals of
``remat``, and backward rules that take accumulators can't be made again; a loop
that holds one is traced again, with its carry promoted.
"""
from __future__ import annotations

from collections.abc import Callable
import copy
from typing import Any
import weakref

from jax._src.mend import coarse
from jax._src import tree_util
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.rules import hijax
from jax._src.varying.types import Axes

# For each rule, how to make it for another operation.
_makers: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def remember(make: Callable, types: int | None = None) -> Callable:
  """Lets a rule that is made for an operation be made for another one.

  Args:
    make: of the operation's traced function, the user's rule and more.
    types: which argument is the operation's types, if one is.

  Returns:
    A function of the same arguments and result.
  """
  def recording(*args, **kwargs):
    rule = make(*args, **kwargs)
    def again(operation):
      new = [operation.traced, *args[1:]]
      if types is not None:
        new[types] = operation.in_avals
      return make(*new, **kwargs)
    if len(args) > (types or 0):  # what changes is told by its position
      _makers[rule] = again
    return rule
  return recording


def _is_custom_vjp(operation) -> bool:
  from jax._src import hijax as jax_hijax  # it imports this module
  return type(operation) is jax_hijax.CustomVJPTraced


def _has_rules(operation) -> bool:
  from jax._src import hijax as jax_hijax  # it imports this module
  return type(operation) in (jax_hijax.CustomVJPTraced,
                             jax_hijax.CustomJVPTraced)


def _rules_of(operation) -> dict[str, Any] | None:
  """The rules that must be made again; None if one can't be."""
  if not _is_custom_vjp(operation):
    held = {'jvp_rule': operation.jvp_rule}
  elif (tree_util.tree_leaves(operation.in_avals[1]) or operation.remat_rules
        or operation.bwd_accums):
    return None
  else:
    held = {'fwd': operation.fwd, 'bwd': operation.bwd}
  return held if all(r in _makers for r in held.values()) else None


def _taken(operation) -> list[int]:
  """The positions of the operands that are the traced function's."""
  sizes = [len(tree_util.tree_leaves(a)) for a in operation.in_avals]
  everything = list(range(sum(sizes)))
  if _is_custom_vjp(operation):
    return everything[:sizes[0]] + everything[sizes[0] + sizes[1]:]
  return everything


def _rule(site: flow.Site, ins: list[Axes]) -> None:
  operation = site.eqn.params['_prim']
  if (not _has_rules(operation) or operation.effects
      or operation.traced._consts or _rules_of(operation) is None):
    flow.unknown(site, ins)
    site.opaque = type(operation) not in coarse.computing
    return
  region, = site.regions(operation.traced.jaxpr)
  site.operands = ins
  site.outs = region.run([ins[n] for n in _taken(operation)])


def _build(b, site: flow.Site) -> None:
  if not site.kids:
    return hijax.build(b, site)
  operation = hijax.at_axes(
      site.eqn.params['_prim'], site.operands, site.outs)
  traced, (region,) = copy.copy(operation.traced), site.kids
  jaxpr = vt.reclose(traced.jaxpr, retype.rebuild(region))
  traced._params = dict(traced._params, jaxpr=jaxpr)
  traced._meta_tys_flat = list(jaxpr.in_avals)
  traced._lojax = traced._closure_converted = None
  operation.traced = traced
  held = _rules_of(operation) or {}
  rules = {n: _makers[r](operation) for n, r in held.items()}
  operation.params = {**operation.params, 'traced': traced, **rules}
  operation.__dict__.update(operation.params)
  retype.copy(b, site, _prim=operation)


# In place of what ``hijax`` has for all, which these ask for the rest.
FLOW_RULES = {'call_hi_primitive': _rule}
BUILDERS = {'call_hi_primitive': _build}
