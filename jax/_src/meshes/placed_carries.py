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

Limits: with ``jax_enable_checks``, the linear part of a gradient in a checked
``shard_map`` is refused: it is compared before it becomes an equation. Before
0.10 a tangent of such a scan is refused, as upstream refuses it.

Cost: a comparison of each carry's type, where a scan becomes an equation.
"""
from __future__ import annotations

from collections.abc import Sequence
import operator
from typing import Any

from jax._src import core
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import anatomy
from jax._src.mend import traces


def at_specs_of_body(scan_p: core.Primitive) -> None:
  """Has scans staged with initial values laid out like the body's carry."""
  def stage(trace, /, *args, **params):
    loop = anatomy.scan(params)
    number = len(args) - len(loop.body.invars)  # the source, up to 0.6.2 none
    source, operands = args[:number], args[number:]
    own = slice(loop.consts, loop.consts + loop.carries)
    given = operands[own]
    if any(params.get('linear', ())):  # it is to be transposed first
      return trace.default_process_primitive(scan_p, operands, params, *source)
    with core.set_current_trace(trace):
      carry = list(map(_laid_out, given, loop.body.outvars))
      if not all(map(operator.is_, carry, given)):
        return _scan(operands[:own.start], given, carry, operands[own.stop:],
                     params)
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


def _scan(consts: Sequence[Any], given: Sequence[Any], carry: list,
          xs: Sequence[Any], params: dict[str, Any]) -> list:
  """The scan with a carry that is laid out like this one."""
  from jax._src import pjit  # imports this
  from jax._src.lax.control_flow import loops  # imports this
  whole = [None if x is old else traces.typeof(old).sharding
           for x, old in zip(carry, given)]
  call = core.jaxpr_as_fun(params['jaxpr'])

  def body(carry, xs):
    carry = [x if s is None else pjit.reshard(x, s)
             for x, s in zip(carry, whole)]
    outs = call(*consts, *carry, *xs)
    return outs[:len(carry)], outs[len(carry):]
  carry, ys = loops.scan(body, carry, list(xs), length=params['length'],
                         reverse=params['reverse'], unroll=params['unroll'])
  return [*carry, *ys]
