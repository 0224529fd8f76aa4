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
"""Loops in a shard_map whose carries become varying, or whose bounds vary.

``while_loop``: the least sets C with C_i containing V(init_i), V(output i of
the body, given C) and, for every carry that the body may change, V(predicate,
given C): devices that leave a loop at different trips leave with different
values. A carry that the body returns untouched doesn't take the predicate's
axes. ``scan``: the same without a predicate. The initial values are cast to C
outside the loop, and the jaxprs are re-typed, once.
"""
from __future__ import annotations

from functools import partial
import threading

from jax._src import core
from jax._src import tree_util
from jax._src import varying_bind as binding
from jax._src import varying_branches  # its rules, for branches in loops
from jax._src import varying_flow as flow
from jax._src import varying_retrace as retrace
from jax._src import varying_retype as retype
from jax._src import varying_types as vt
from jax._src.util import split_list
from jax._src.varying_types import Axes


def _grow(carry: list[Axes], new, jaxpr: core.Jaxpr, start: int) -> list[Axes]:
  """The carry's sets joined with ``new``; only arrays have varying axes."""
  return [c | n if isinstance(v.aval, core.ShapedArray) else c
          for c, n, v in zip(carry, new, jaxpr.invars[start:])]


def while_rule(site: flow.Site, ins: list[Axes]) -> None:
  params = site.eqn.params
  nc, nb = params['cond_nconsts'], params['body_nconsts']
  cond, body = site.regions(params['cond_jaxpr'], params['body_jaxpr'])
  cond_consts, body_consts, carry = split_list(ins, [nc, nb])
  invars = body.jaxpr.invars[nb:]
  changed = [v is not out for v, out in zip(invars, body.jaxpr.outvars)]
  if site.operands:
    carry = _grow(carry, site.operands[nc + nb:], body.jaxpr, nb)
  while True:
    pred, = cond.run(cond_consts + carry)
    if pred and body.refs:
      for n in vt.written(body.jaxpr):
        body_consts[n] |= pred
    outs = [o | pred if c else o
            for o, c in zip(body.run(body_consts + carry), changed)]
    grown = _grow(carry, outs, body.jaxpr, nb)
    if grown == carry:
      break
    carry = grown
  if pred:
    flow.diverges(site, pred)
  cond_consts = flow.entered(site, cond, cond_consts + carry)[:nc]
  body_consts = flow.entered(site, body, body_consts + carry, nc)[:nb]
  site.operands, site.outs = cond_consts + body_consts + carry, carry


def scan_counts(params) -> tuple[int, int]:
  """The numbers of constants and of carries of a scan."""
  if 'num_consts' in params:
    return params['num_consts'], params['num_carry']
  consts, carry, _ = params['ft_in'].unpack()
  return len(consts), len(carry)


def scan_rule(site: flow.Site, ins: list[Axes]) -> None:
  params = site.eqn.params
  nc, nk = scan_counts(params)
  body, = site.regions(params['jaxpr'])
  consts, carry, xs = split_list(ins, [nc, nk])
  if site.operands:
    carry = _grow(carry, site.operands[nc:nc + nk], body.jaxpr, nc)
  while True:
    outs, ys = split_list(body.run(consts + carry + xs), [nk])
    grown = _grow(carry, outs, body.jaxpr, nc)
    if grown == carry:
      break
    carry = grown
  site.operands = flow.entered(site, body, consts + carry + xs)
  site.outs = carry + ys


def while_params(site: flow.Site) -> dict:
  cond, body = site.kids
  params = site.eqn.params
  return dict(
      cond_jaxpr=vt.reclose(params['cond_jaxpr'], retype.rebuild(cond)),
      body_jaxpr=vt.reclose(params['body_jaxpr'],
                            retype.rebuild(body, site.outs)))


def scan_params(site: flow.Site) -> dict:
  body, = site.kids
  return dict(jaxpr=vt.reclose(site.eqn.params['jaxpr'],
                               retype.rebuild(body, site.outs)))


del varying_branches
flow.rules.update({'while': while_rule, 'scan': scan_rule})
retype.builders.update({
    'while': lambda b, site: retype.copy(b, site, **while_params(site)),
    'scan': lambda b, site: retype.copy(b, site, **scan_params(site))})


def while_solved(params, args) -> bool:
  """Whether the predicate is the same everywhere, and no carry grows."""
  cond = vt.open_jaxpr(params['cond_jaxpr'])
  body = vt.open_jaxpr(params['body_jaxpr'])
  return (not vt.varying(cond.outvars[0].aval)
          and not vt.has_refs(cond)
          and binding.refs_fit(body, args[params['cond_nconsts']:])
          and binding.same_axes(body.invars[params['body_nconsts']:],
                                body.outvars))


def scan_solved(params, args) -> bool:
  """Whether no carry grows."""
  body, (nc, nk) = vt.open_jaxpr(params['jaxpr']), scan_counts(params)
  return (binding.same_axes(body.invars[nc:nc + nk], body.outvars)
          and binding.refs_fit(body, args))


def bind_while(prim: core.Primitive):
  """What binds a while loop at the least types that hold for it."""
  return partial(binding.bind, prim, while_solved, while_params, carries=True)


def bind_scan(prim: core.Primitive):
  """What binds a scan at the least types that hold for it."""
  return partial(binding.bind, prim, scan_solved, scan_params, carries=True)


class _Call(threading.local):
  """Whether the next call of a loop is ``retracing``'s own."""
  own = False


_call = _Call()


def retraces() -> bool:
  """Whether the loop that has been called must go through ``retracing``.

  Outside of shard_map nothing is traced again, and no frame added to the stack.
  """
  if _call.own:
    _call.own = False
    return False
  return vt.checking()


def retracing(loop, init: int, *args):
  """Calls a loop, and again where its carry must be promoted beforehand.

  Args:
    loop: ``scan`` or ``while_loop``, which asks ``retraces`` first of all.
    init: the position of the carry's initial value.
    *args: the loop's arguments.

  Returns:
    What the loop returns.
  """
  _call.own = True
  try:
    return loop(*args)
  except (retrace.CarryGrew, retrace.DivergentDerivativeError) as e:
    refused = e
  leaves, tree = tree_util.tree_flatten(args[init])

  def again(leaves):
    value = tree_util.tree_unflatten(tree, leaves)
    return loop(*args[:init], value, *args[init + 1:])

  return refused.retry(leaves, again)
