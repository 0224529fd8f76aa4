# SPDX-License-Identifier: Apache-2.0
"""Taylor mode (``jax.experimental.jet``) inside shard_map.

A value has a primal and terms, and each may vary over axes of its own: what a
function makes of a replicated number and varying terms has a replicated primal.
jet's rules bind primitives on primals and terms of all operands together, and
make terms that are zero without a thought for what varies. So

* operands and terms are cast to the union of their axes before a rule has them;
  where the terms alone vary more, the primal is computed at its own type;
* casts and linear collectives, of which jet knows nothing, have linear rules.

Limits: as outside of ``shard_map``, there is no rule for loops and branches.
Cost: one look at the types per equation; a primal that is computed twice, where
only terms vary, is merged by XLA.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax._src import core
from jax._src.lax import parallel
from jax._src.mend import anatomy
from jax._src.mend import releases
from jax._src.varying import types as vt
from jax._src.varying.types import Axes, NO_AXES

_LINEAR = ('psum', 'psum_invariant', 'ppermute', 'all_to_all', 'all_gather',
           'all_gather_invariant', 'reduce_scatter')


def _axes(values) -> Axes:
  return NO_AXES.union(*(vt.varying(vt.typeof(x)) for x in values))


def _cast(values, axes: Axes) -> list:
  return [vt.cast(x, axes) if isinstance(vt.typeof(x), core.ShapedArray) else x
          for x in values]


def fitted(prim: core.Primitive, rule: Callable) -> Callable:
  """A rule of jet's, for primals and terms that vary over any axes.

  Args:
    prim: the primitive that the rule is for.
    rule: takes the primals and, for each, the list of its terms.

  Returns:
    The rule; itself where nothing varies in types, for a call, and for casts
    and linear collectives.
  """
  # What jit calls meets the rules.
  if (not vt.checking() or anatomy.CALLS[prim] == anatomy.JIT
      or prim in linear_rules):
    return rule

  def fit(primals, series, /, **params):
    own = _axes(primals)
    axes = own.union(*map(_axes, series))
    primal_out, terms_out = rule(_cast(primals, axes),
                                 [_cast(terms, axes) for terms in series],
                                 **params)
    if axes != own:
      primal_out = prim.bind(*_cast(primals, own), **params)
    return primal_out, terms_out
  return fit


def _cast_rule(primals, series, /, **params):
  """Each of a value's terms is cast where it doesn't vary yet."""
  axes = frozenset(params['axes'])
  primal_out = core.pvary_p.bind(*primals, **params)
  terms_out = [_cast(terms, axes | _axes([x]))
               for x, terms in zip(primals, series)]
  multiple = core.pvary_p.multiple_results  # 0.6.0
  return primal_out, terms_out if multiple else terms_out[0]


def _linear_rule(prim: core.Primitive) -> Callable:
  def rule(primals, series, /, **params):
    """Each of a value's terms becomes what the value does."""
    primal_out = prim.bind(*primals, **params)
    if vt.checking():
      series = [_cast(terms, _axes([x])) for x, terms in zip(primals, series)]
    terms_out = [prim.bind(*terms, **params) for terms in zip(*series)]
    if prim.multiple_results:
      return primal_out, [list(terms) for terms in zip(*terms_out)]
    return primal_out, terms_out
  return rule


def _linear_rules() -> Mapping[core.Primitive, Callable[..., Any]]:
  prims = releases.existing(parallel, [f'{name}_p' for name in _LINEAR])
  rules = {prim: _linear_rule(prim) for prim in prims}
  return {core.pvary_p: _cast_rule, **rules}


linear_rules = _linear_rules()
