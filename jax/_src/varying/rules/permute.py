# SPDX-License-Identifier: Apache-2.0
"""Marks each ppermute that not all devices of the mesh reach.

Which those are, the type of the loop or branch says; what becomes of a marked
one, ``mend.permute``.

Cost: while tracing, one pass over the jaxprs of loops and branches that hold a
``ppermute`` and whose predicate varies; others pay nothing.
"""
from __future__ import annotations

from typing import Any
import weakref

from jax._src import core
from jax._src.mend import jaxprs
from jax._src.mend import permute
from jax._src.varying import contents
from jax._src.varying import flow


def marked(site: flow.Site, params: dict[str, Any]) -> dict[str, Any]:
  """A loop's or branch's jaxprs, marked if devices diverge there.

  Args:
    site: the loop or branch, solved.
    params: those of its parameters that hold jaxprs.

  Returns:
    The parameters, with each ``ppermute`` marked that some devices don't reach.
  """
  if not site.predicate or site.selects:
    return params
  return {name: jaxprs.map_jaxprs(_mark_jaxpr, x) for name, x in params.items()}


def _mark_jaxpr(jaxpr: core.Jaxpr) -> core.Jaxpr:
  if not contents.contents(jaxpr).permutes:
    return jaxpr
  if jaxpr not in _marked:
    _marked[jaxpr] = jaxpr.replace(
        eqns=[permute.marked_eqn(e, _mark_jaxpr) for e in jaxpr.eqns])
  return _marked[jaxpr]


_marked: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()
