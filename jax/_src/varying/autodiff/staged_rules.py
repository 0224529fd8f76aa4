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
"""Custom derivative rules of functions that are re-typed after their tracing.

A loop or branch that holds a ``custom_jvp`` or ``custom_vjp`` function is
traced before it is known what varies, and re-typed then; the rules are traced
later, or earlier, at other types (jax#28193):

* The JVP rule of a staged function is traced at the types that the function was
  staged at. Where these are raised, a tangent that depends on nothing, such as
  a constant slope, stays behind its primal. It is cast.
* ``custom_vjp(..., optimize_remat=True)`` stages the forward rule as an
  operation of its own, with the function beside it, which takes its place if
  nothing is differentiated after all. Both are re-typed.

Cost: where nothing is re-typed, a look at the types of each JVP rule's results.
"""
from __future__ import annotations

from collections.abc import Callable

from jax._src import linear_util as lu
from jax._src.ad_util import SymbolicZero
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


def match_tangents(lift: Callable) -> Callable:
  """Lets staged JVP rules give each tangent at least its primal's axes.

  Args:
    lift: makes a function of primals and tangents, flat, from a staged rule.

  Returns:
    A function of the same arguments and results.
  """
  def lifted(*args):
    rule = lift(*args)

    def jvp(*xs):
      outs = rule.call_wrapped(*xs)
      if not vt.checking():
        return outs
      half = len(outs) // 2
      return [*outs[:half], *map(_matched, outs[:half], outs[half:])]

    return lu.wrap_init(jvp, debug_info=rule.debug_info)
  return lifted


def _matched(primal, tangent):
  if type(tangent) is SymbolicZero:
    return tangent
  return vt.cast(tangent, vt.varying(vt.typeof(primal)))


def _remat_opt(site: flow.Site, ins: list[Axes]) -> None:
  region, = site.regions(site.eqn.params['fwd_jaxpr'])
  site.outs = region.run(ins)
  site.operands = flow.entered(site, region, ins)


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
