# SPDX-License-Identifier: Apache-2.0
"""Calls: equations that apply the one jaxpr in their parameters.

What a call's operands vary over, its jaxpr's inputs do, and its outputs vary
over what the jaxpr's do. A ``custom_vjp``'s backward rule is a function still:
its results are checked against types that were right when the call was traced,
so it is told those of now.
"""
from __future__ import annotations

from collections.abc import Sequence

from jax._src import linear_util as lu
from jax._src.mend import anatomy
from jax._src.varying import backward
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


def call(site: flow.Site, ins: list[Axes]) -> None:
  """An equation that calls the one jaxpr in its parameters."""
  region, = site.regions(site.eqn.params[anatomy.callee(site.eqn.params)])
  site.outs = region.run(ins)
  site.operands = flow.record_ref_writes(site, region, ins)


def call_params(site: flow.Site) -> dict:
  """The parameters of a call, re-typed with the jaxpr that it calls."""
  params, (region,) = site.eqn.params, site.kids
  name = anatomy.callee(params)
  return {name: vt.reclose(params[name], retype.rebuild(region))}


def _call(b, site: flow.Site) -> None:
  retype.copy(b, site, **call_params(site))


def _with_input_types(bwd: lu.WrappedFun, axes: Sequence[Axes | None]
                      ) -> lu.WrappedFun:
  """Tells a backward rule the varying axes of its inputs, as far as known."""
  if hasattr(bwd.f, 'call_with_accums'):  # it adds to what it is given
    return bwd

  def bwd_at_new_types(*args):
    with backward.rule.of(axes):
      return bwd.call_wrapped(*args)

  return lu.wrap_init(bwd_at_new_types, debug_info=bwd.debug_info)


def _custom_vjp(b, site: flow.Site) -> None:
  """The forward rule is typed when it's evaluated; the backward is checked."""
  params = site.eqn.params
  retype.copy(b, site, **call_params(site), bwd=_with_input_types(
      params['bwd'], site.operands[params['num_consts']:]))


def _custom_lin(b, site: flow.Site) -> None:
  """The flow of what is to be a custom_vjp's backward rule."""
  params = site.eqn.params
  directions = iter(site.operands[params['num_res']:])
  out_avals = params['out_avals']
  primals = [None if zero else next(directions) for zero in params.get(
      'in_zeros', [False] * (len(site.operands) - params['num_res']))]
  retype.copy(b, site, bwd=_with_input_types(params['bwd'], primals),
              out_avals=type(out_avals)(map(
                  vt.with_varying, out_avals, site.outs)))


def _linear_call(b, site: flow.Site) -> None:
  """A function, and another that is its transpose, traced when it is wanted."""
  params = site.eqn.params
  first, num_res = params['num_callee_consts'], params['num_res']
  ins, outs = site.operands[first:first + num_res], site.outs

  def transpose_at_new_types():
    jaxpr, consts = params['transpose_thunk']()
    region = flow.Region(vt.open_jaxpr(jaxpr))
    own = len(consts)
    region.run([*region.traced[:own], *map(
        Axes.union, region.traced[own:], [*ins, *outs])])
    return vt.reclose(jaxpr, retype.rebuild(region)), consts

  retype.copy(b, site, **call_params(site),
              transpose_thunk=transpose_at_new_types)


_NAMES = anatomy.named(
    anatomy.CALLS, anatomy.JIT, anatomy.PLAIN, anatomy.REMAT, anatomy.JVP,
    anatomy.VMAP, anatomy.COMPILED)
_CUSTOM_VJP = anatomy.named(anatomy.CALLS, anatomy.VJP)
_LINEAR = anatomy.named(anatomy.CALLS, anatomy.LINEAR)
FLOW_RULES = dict.fromkeys((*_NAMES, *_CUSTOM_VJP, *_LINEAR), call)
BUILDERS = {**dict.fromkeys(_NAMES, _call),
            **dict.fromkeys(_CUSTOM_VJP, _custom_vjp),
            **dict.fromkeys(_LINEAR, _linear_call), 'custom_lin': _custom_lin}
