# SPDX-License-Identifier: Apache-2.0
"""Scans whose carry comes to lie on an Explicit axis in their body (jax#29637).

A carry that begins over no mesh, as a NumPy array does, may have any spec after
the body: a type over no mesh fits every other. In a partly manual shard_map, or
where ``vmap`` makes it mapped, the initial value itself comes to be over the
mesh, whole on each device. Then the scan was traced with one type and is bound
with another. That is refused as it is lowered, in the name of a ``while_loop``
that the program hasn't got.

Here such an initial value is laid out like the carry that the body returns. In
each step the body is given it as it was traced, whole: so are the jaxprs in it.
An initial value that has the spec from the start spares that gather.

Limits: from 0.10 on, with ``jax_enable_checks`` the gradient in a checked
``shard_map`` is refused: its linear part is compared before it becomes an
equation. So is, on any release, that by stacked results which are the carry as
the body is given it, whole: their cotangents are not laid out.

Cost: a comparison of each carry's type, where a scan becomes an equation.
"""
from __future__ import annotations

from collections.abc import Sequence
import operator
from typing import Any

from jax._src import core
from jax._src.interpreters import partial_eval as pe
from jax._src import linear_util as lu
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import traces


def at_specs_of_body(scan_p: core.Primitive) -> None:
  """Has scans staged with initial values laid out like the body's carry."""
  def stage(trace, /, *args, **params):
    loop = anatomy.scan(params)
    number = len(args) - len(loop.body.invars)  # the source, up to 0.6.2 none
    source, operands = args[:number], args[number:]
    own = slice(loop.consts, loop.consts + loop.carries)
    with core.set_current_trace(trace):
      carry = list(map(_laid_out, operands[own], loop.body.outvars))
      if not all(map(operator.is_, carry, operands[own])):
        new = [*operands[:own.start], *carry, *operands[own.stop:]]
        body = _given_whole(params['jaxpr'], loop.body, own, operands, new)
        return scan_p.bind(*new, **dict(params, jaxpr=body))
    return trace.default_process_primitive(scan_p, operands, params, *source)
  pe.custom_staging_rules[scan_p] = stage


def _laid_out(x: Any, out: Any) -> Any:
  """A carry's initial value, laid out like what the body returns."""
  from jax._src import pjit  # imports this
  now, then = (getattr(a, 'sharding', None)
               for a in (traces.typeof(x), out.aval))
  if (now is None or then is None or now.mesh.empty or now.mesh != then.mesh
      or now.spec == then.spec):
    return x
  return pjit.reshard(x, then)


def _given_whole(closed: Any, body: core.Jaxpr, own: slice,
                 old: Sequence[Any], new: Sequence[Any]) -> Any:
  """A body that takes the carry as it is laid out, and goes on as before."""
  from jax._src import pjit  # imports this
  changed = {n: traces.typeof(x) for n, x in enumerate(old) if x is not new[n]}
  avals = [v.aval for v in body.invars]
  avals[own] = map(traces.typeof, new[own])
  call = core.jaxpr_as_fun(closed)

  def given_whole(*args):
    return call(*(pjit.reshard(x, changed[n].sharding) if n in changed else x
                  for n, x in enumerate(args)))
  jaxpr, _, consts, *_ = pe.trace_to_jaxpr_dynamic(
      lu.wrap_init(given_whole, debug_info=body.debug_info), avals)
  return jaxprs.CLASSES[-1](jaxpr, consts)
