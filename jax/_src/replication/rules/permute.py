# SPDX-License-Identifier: Apache-2.0
"""Marks each ppermute that not all devices of the mesh reach.

``divergence`` says which those are; what becomes of a marked one,
``mend.permute``.
"""
from __future__ import annotations

from jax._src import core
from jax._src.lax import parallel
from jax._src.mend import jaxprs
from jax._src.mend import permute

PartlyReached = permute.PartlyReached


def mark(x):
  """A parameter, with each ppermute in its jaxprs marked."""
  return jaxprs.map_jaxprs(_mark_jaxpr, x)


def _mark_jaxpr(jaxpr: core.Jaxpr) -> core.Jaxpr:
  eqns = [permute.marked_eqn(e, _mark_jaxpr) for e in jaxpr.eqns]
  if all(a is b for a, b in zip(eqns, jaxpr.eqns)):
    return jaxpr
  return jaxpr.replace(eqns=eqns)


permute.lower_for_cpu(parallel.ppermute_p, parallel._ppermute_lowering)
