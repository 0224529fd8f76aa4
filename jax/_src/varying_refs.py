# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Refs in loops and branches of a shard_map: what may be written to them.

A ref's type is fixed where it is made, which is before the loop or branch that
writes to it is traced, so it can't be promoted as a carry can. A write of a
value that varies over more axes than the ref, or one that some devices reach
and others don't, is refused.
"""
from __future__ import annotations

from jax._src import core
from jax._src import source_info_util
from jax._src import varying_types as vt
from jax._src.varying_types import Axes

_ADVICE = ("\nMake the ref from a value that varies over those axes: "
           "new_ref(jax.lax.pcast(x, {}, to='varying')), or jax.lax.pvary on "
           'older releases.')


def check_write(eqn: core.JaxprEqn, ref: Axes, value: Axes) -> None:
  """Refuses to write a varying value to a ref that varies less."""
  if value - ref:
    extra = vt.ordered(value - ref)
    raise TypeError(
        f'{source_info_util.summarize(eqn.source_info)}: a value that varies '
        f'over {vt.ordered(value)} is written to a ref of type '
        f'{eqn.invars[0].aval.str_short()}, which varies over '
        f'{vt.ordered(ref)}.' + _ADVICE.format(extra))


def _written(jaxpr: core.Jaxpr) -> set[int]:
  """The positions of the refs among the inputs that the jaxpr writes to."""
  effects = (core.positional_effects(jaxpr)
             if hasattr(core, 'positional_effects') else jaxpr.effects)
  return {e.input if hasattr(e, 'input') else e.input_index for e in effects
          if type(e).__name__ in ('WriteEffect', 'AccumEffect')}


def check_predicate(site) -> None:
  """Refuses a write that devices reach, or don't, by a varying predicate."""
  for region in site.kids:
    if not any(vt.is_ref(v.aval) for v in region.jaxpr.invars):
      continue
    for n in _written(region.jaxpr):
      aval = region.jaxpr.invars[n].aval
      missing = site.predicate - vt.varying(aval)
      if missing:
        raise TypeError(
            f'{source_info_util.summarize(site.eqn.source_info)}: lax.'
            f'{site.eqn.primitive.name} has a predicate that varies over '
            f'{vt.ordered(site.predicate)} and writes to a ref of type '
            f'{aval.str_short()}, so its content would differ over '
            f'{vt.ordered(missing)} as well.'
            + _ADVICE.format(vt.ordered(missing)))
