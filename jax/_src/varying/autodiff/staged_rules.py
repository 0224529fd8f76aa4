# SPDX-License-Identifier: Apache-2.0
"""Staged forward rules of functions that are re-typed after their tracing.

A loop or branch that holds a ``custom_vjp`` function is traced before it is
known what varies, and re-typed then (jax#28193). With ``optimize_remat=True``
the function's forward rule is an operation of its own, with the function beside
it, which takes its place if nothing is differentiated after all. Both are
re-typed.

Limits: JVP rules and other forward rules are traced when they are
differentiated, at the types of then; they need no rule here.

Cost: that of re-typing a program, once more for the function.
"""
from __future__ import annotations

from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


def _remat_opt(site: flow.Site, ins: list[Axes]) -> None:
  region, = site.regions(site.eqn.params['fwd_jaxpr'])
  site.outs = region.run(ins)
  site.operands = flow.record_ref_writes(site, region, ins)


def _build_remat_opt(b, site: flow.Site) -> None:
  params, (region,) = site.eqn.params, site.kids
  ins = site.operands[params['num_consts']:]
  outs = site.outs[params['num_res']:]

  def function_at_new_types():
    jaxpr, consts = params['fun_jaxpr_thunk']()
    function = flow.Region(jaxpr)
    function.run(ins)
    return retype.rebuild(function, outs), consts

  retype.copy(
      b, site, fun_jaxpr_thunk=function_at_new_types,
      fwd_jaxpr=vt.reclose(params['fwd_jaxpr'], retype.rebuild(region)))


FLOW_RULES = {'remat_opt': _remat_opt}
BUILDERS = {'remat_opt': _build_remat_opt}
