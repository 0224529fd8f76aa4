# SPDX-License-Identifier: Apache-2.0
"""Transformations of a call of an exported function (jax#28327).

An exported function is a module, which can't be differentiated or batched, and
the modules of its vjp, as many orders of them as were serialized.

* Batching calls it once for each element, in a loop (`lax.map`): a batch of N
  costs N calls, one after the other.
* Reverse mode calls the vjp, as the base does.
* Forward mode is one call of the vjp's vjp. The vjp is linear in its cotangent
  ``c``, ``c -> J' c``; so its own vjp in ``c``, at any ``c``, takes ``t`` to
  ``J t``. Here ``c`` is zero. This needs two orders of vjp.

The derivative is a primitive of its own, linear in the tangents: its transpose
is reverse mode, so that `jax.grad` needs one order as before, and its
derivative is that of the call that it makes. So `jax.jacfwd` needs two orders,
``jacrev(jacrev(f))`` too, and `jax.hessian`, which is ``jacfwd(jacrev(f))``,
three. What isn't there is named when it is needed.

Inside of ``shard_map`` primals and tangents are cast to vary along the union of
their axes, and so do the rates: a tangent may differ between devices where the
primal doesn't. An edit registers that, for the releases whose types hold axes;
on 0.5.3 it is the standard rule for replication.
"""

from __future__ import annotations

from collections.abc import Sequence
import functools
from typing import Any

import numpy as np

from jax._src import api
from jax._src import core
from jax._src import dispatch
from jax._src import dtypes
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.mend import pages
from jax._src.mend import traces

derivative_p = core.Primitive('call_exported_derivative')
derivative_p.multiple_results = True

# Set by `register`.
_call_p: Any = None


def register(primitive: Any) -> None:
  """Gives the base's primitive its rules.

  Args:
    primitive: calls an exported function, ``exported``, on flat arguments.
  """
  global _call_p
  _call_p = primitive
  ad.primitive_jvps[primitive] = _jvp
  for each in (primitive, derivative_p):
    batching.primitive_batchers[each] = functools.partial(_one_by_one, each)


def flat_call(exported: Any) -> Any:
  """Returns the function of flat arguments that calls `exported`."""
  return lambda *args: _call_p.bind(*args, exported=exported)


def _one_by_one(primitive, args, dims, **params):
  """Calls `primitive` for each element of the batch, in turn."""
  # pylint: disable-next=g-import-not-at-top
  from jax._src.lax.control_flow import loops
  mapped = [d is not None for d in dims]
  batched = [batching.moveaxis(x, d, 0)
             for x, d, m in zip(args, dims, mapped) if m]

  def one(elements):
    rest = iter(elements)
    return primitive.bind(*[next(rest) if m else x
                            for x, m in zip(args, mapped)], **params)
  outs = loops.map(one, batched)
  return outs, [0] * len(outs)


@functools.lru_cache(maxsize=64)
def _vjp_of(exported: Any) -> Any:
  return exported.vjp()


def _vjp(exported: Any, missing: int) -> Any:
  """Returns the vjp of `exported`, of which `missing` orders are needed."""
  if not exported.has_vjp():
    raise ValueError(
        'No VJP is available. jax.export.Exported.call: this '
        f'derivative expected {missing} more order(s) of vjp than '
        'were serialized. Serialize it with exported.serialize(vjp_order=N), '
        'where N is 1 for jax.grad, jax.vjp and jax.jacrev; 2 for jax.jvp, '
        'jax.linearize, jax.jacfwd and for reverse mode twice; 3 for '
        'jax.hessian.' +
        pages.see('ahead_of_time.md#an-exported-function'))
  return _vjp_of(exported)


def _is_differentiable(aval: Any) -> bool:
  return dtypes.issubdtype(aval.dtype, np.inexact)


def _jvp(primals, tangents, *, exported):
  outs = _call_p.bind(*primals, exported=exported)
  which = tuple(type(t) is not ad.Zero for t in tangents)
  rates = iter(derivative_p.bind(
      *primals, *[t for t in tangents if type(t) is not ad.Zero],
      exported=exported, which=which) if any(which) else ())
  avals = [*map(traces.typeof, outs)]
  return outs, [
      next(rates) if any(which) and _is_differentiable(aval)
      else ad.Zero(aval.to_tangent_aval()) for aval in avals]


def _split(args: Sequence[Any], which: Sequence[bool]) -> tuple[Any, Any]:
  return args[:len(which)], args[len(which):]


def _call_avals(avals: Sequence[Any], exported: Any) -> Sequence[Any]:
  """Returns the avals of the results, with the axes that they vary along."""
  return _call_p.abstract_eval(*avals, exported=exported)[0]


def _derivative_avals(*avals, exported, which):
  outs = _call_avals(_split(avals, which)[0], exported)
  return [aval for aval in outs if _is_differentiable(aval)]


def _derivative(*args, exported, which):
  """The derivative, by the vjp of the vjp."""
  primals, tangents = _split(args, which)
  second = _vjp(_vjp(exported, 2), 1)
  out_avals = _call_avals([*map(traces.typeof, primals)], exported)
  rest = iter(tangents)
  along = [next(rest) if w else _zero(traces.typeof(x))
           for x, w in zip(primals, which)]
  found = _call_p.bind(*primals, *map(_zero, out_avals), *along,
                       exported=second)
  return [x for x, aval in zip(found[len(primals):], out_avals)
          if _is_differentiable(aval)]


def _zero(aval: Any) -> Any:
  """A zero tangent or cotangent of what has this aval."""
  if not _is_differentiable(aval):
    return np.zeros(aval.shape, dtypes.float0)
  # pylint: disable-next=g-import-not-at-top
  from jax._src.lax import lax
  dtype: Any = dtypes.canonicalize_dtype(aval.dtype, allow_extended_dtype=True)
  zeros = lax.full(aval.shape, 0, dtype)
  if dtype == aval.dtype:
    return zeros
  # Where 64 bits are off no constant has them; an exported function may.
  return lax.convert_element_type_p.bind(
      zeros, new_dtype=aval.dtype, weak_type=False, sharding=None)


def _derivative_jvp(args, tangents, *, exported, which):
  zeros = [_zero(traces.typeof(x)) if type(t) is ad.Zero else t
           for x, t in zip(args, tangents)]
  along = functools.partial(_derivative, exported=exported, which=which)
  return api.jvp(along, tuple(args), tuple(zeros))


def _transpose(cts, *args, exported, which):
  primals, tangents = _split(args, which)
  out_avals = _call_avals([*map(traces.typeof, primals)], exported)
  rest = iter(cts)
  full = [ad.instantiate_zeros(next(rest)) if _is_differentiable(aval)
          else _zero(aval) for aval in out_avals]
  found = _call_p.bind(*primals, *full, exported=_vjp(exported, 1))
  wanted = [x for x, w in zip(found, which) if w]
  return [None] * len(primals) + [
      x if ad.is_undefined_primal(t) else None
      for x, t in zip(wanted, tangents)]


derivative_p.def_abstract_eval(_derivative_avals)
derivative_p.def_impl(functools.partial(
    dispatch.apply_primitive, derivative_p))
mlir.register_lowering(derivative_p, mlir.lower_fun(
    _derivative, multiple_results=True))
ad.primitive_jvps[derivative_p] = _derivative_jvp
ad.primitive_transposes[derivative_p] = _transpose
