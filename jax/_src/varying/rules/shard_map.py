# SPDX-License-Identifier: Apache-2.0
"""A shard_map within another: what varies outside varies inside, too."""
from __future__ import annotations

from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


def shard_map(site: flow.Site, ins: list[Axes]) -> None:
  """Inside, an operand varies over its spec's axes as well."""
  eqn = site.eqn
  if not eqn.params.get('check_vma', eqn.params.get('check_rep')):
    return flow.ordinary(site, ins)
  if any(vt.is_ref(v.aval) for v in eqn.invars):
    return flow.unknown(site, ins)
  region, = site.regions(eqn.params['jaxpr'])  # else it is left as it was
  inner = [vt.varying(b.aval) | (i - vt.varying(v.aval)) for b, v, i in
           zip(region.jaxpr.invars, eqn.invars, ins)]
  site.operands = ins
  site.outs = [
      vt.varying(o.aval) | (r - vt.varying(w.aval)) for o, w, r in
      zip(eqn.outvars, region.jaxpr.outvars, region.run(inner))]


def _shard_map(b, site: flow.Site) -> None:
  if site.kids:
    retype.copy(b, site, jaxpr=vt.reclose(site.eqn.params['jaxpr'],
                                          retype.rebuild(site.kids[0])))
  else:
    retype.copy(b, site)


FLOW_RULES = {'shard_map': shard_map}
BUILDERS = {'shard_map': _shard_map}
