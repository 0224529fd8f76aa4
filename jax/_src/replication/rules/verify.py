# SPDX-License-Identifier: Apache-2.0
"""Verifies what the check of a ``shard_map`` says is replicated.

With ``jax_enable_checks``, each equation of a jaxpr that is checked is held
against coarse rules (``mend.coarse``), which have nothing of ``flow``'s: what
upstream's table of check rules says of its results, of operands of such types,
must not be the same along an axis along which they may differ. So are those of
a loop's body, a branch or a call, by what comes out of these.

Limits: a rule that says too little isn't seen. Believed are kernels, calls of
foreign code, refs, what holds jaxprs that no rule knows, other libraries'
primitives, and a ``shard_map`` with the check off. Nothing is looked at that is
evaluated without ``jit``.

Cost: nothing without ``jax_enable_checks``. With it each jaxpr is walked once
more whenever it is checked.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import core
from jax._src import source_info_util
from jax._src.mend import coarse
from jax._src.mend import foreign
from jax._src.mend import pages
from jax._src.replication.rules import lookup
from jax._src.replication.rules import reps
from jax._src.replication.rules import standard
from jax.experimental import shard_map as sm

checked = 0  # equations, since the module was imported, for tests


class NarrowTypeError(AssertionError):
  """A value may differ along an axis along which it is said to be the same."""


def verify(mesh: Any, jaxpr: core.Jaxpr, in_rep: Sequence[Any]) -> None:
  """Verifies what the check says of a jaxpr's equations.

  Args:
    mesh: of the axes that the check is about.
    jaxpr: an open one.
    in_rep: the types of its inputs.

  Raises:
    NarrowTypeError: with the first equation of whose results it says too much.
  """
  global checked
  names = frozenset(mesh.axis_names)
  setting = coarse.Setting(names, _believed, single=frozenset(
      a for a in names if mesh.shape[a] == 1))
  types: dict[core.Var, Any] = dict.fromkeys(jaxpr.constvars, set(names))
  types.update(zip(jaxpr.invars, in_rep))
  for eqn in jaxpr.eqns:
    ins = [types[v] if isinstance(v, core.Var) else None for v in eqn.invars]
    rule = lookup.rule(sm._check_rules, eqn.primitive)
    outs = standard.per_output(rule(mesh, *ins, **eqn.params),
                               len(eqn.outvars))
    found = coarse.of_equation(eqn, [_differing(names, r) for r in ins],
                               setting)
    checked += 1
    for n, (v, rep, axes) in enumerate(zip(eqn.outvars, outs, found.outs)):
      types[v] = rep
      if missing := axes - _differing(names, rep):
        raise NarrowTypeError(_message(eqn, n, missing))


def _believed(eqn: core.JaxprEqn, ins: Sequence[frozenset[Any]],
              setting: coarse.Setting) -> coarse.Found | None:
  """Follows what applies a jaxpr, and believes what speaks for itself."""
  if foreign.is_foreign_primitive(eqn.primitive) or (
      eqn.primitive is sm.shard_map_p and not eqn.params['check_rep']):
    return coarse.none_of(eqn)
  # What applies another jaxpr gives what that makes: custom_vjp's remat_opt.
  found = None if coarse.has_rule(eqn) else coarse.of_call(eqn, ins, setting)
  return found or coarse.believing(eqn, ins, setting)


def _differing(names: frozenset[Any], rep: Any) -> frozenset[Any]:
  """The axes along which a value of a type may differ; None is a constant's."""
  return names.difference(names if rep is None else reps.equal(rep))


def _message(eqn: core.JaxprEqn, n: int, axes: frozenset[Any]) -> str:
  return (
      f'{eqn.primitive} at {source_info_util.summarize(eqn.source_info)}: '
      f'result {n} may differ along {tuple(sorted(axes, key=str))}, along '
      'which the check of shard_map says that it is replicated. The equation '
      f'is\n{eqn}\nThis is a mistake in the rules of the check. Please report '
      'the program that shows it. Without jax_enable_checks it runs, and a '
      'result may be wrong.' + pages.see('varying.md#how-it-is-kept-so'))
