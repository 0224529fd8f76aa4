# SPDX-License-Identifier: Apache-2.0
"""Complex functions at infinities and nan (jax#27606).

The standard has a table for each complex function: what it is where a part of
its argument is an infinity or nan. C and NumPy have the same one. Compilers
expand most of these functions into products of real ones, where an infinity
times nan is nan, though the table has an infinity or a zero: ``tanh(nanj)``
was nan and is ``0+nanj``, ``atan(nan+1j)`` was ``-pi/2+nanj`` and is nan.

What is corrected is the *lowering* of the primitives for CPUs, and only that of
complex arguments: the compiler's value, then a few selects on it, each of which
asks for a part that is infinite or nan. So what is traced, batched, transposed
and read by other interpreters stays as it was, finite arguments keep their
values, and nothing changes for real ones. The selects are operations of the
lowered module, whose constants are in no memory of their own: arrays in host
memory and `compute_on` see none of it. A table below takes both parts of the
argument, then both of the compiler's value, and gives those of the result.
``tan``, ``asin`` and ``atan`` are ``-j f(jz)`` of a hyperbolic ``f``, with its
table.

A value is corrected where it disagrees with the standard and with NumPy, both,
and where no rule of differentiation computes with it. Those of ``exp``,
``expm1`` and ``sqrt`` use the function's own value, those of ``sin`` and
``cos``, ``sinh`` and ``cosh`` each other's, that of a power its base's ``log``:
corrected, they would change gradients at these arguments, so they are left as
they were. In those of ``tan`` and ``tanh`` their value is squared, which is nan
with and without the correction.

Limits: other platforms have their compilers' values; in a module that is
lowered for several, its platform index decides. Branch cuts: along them the
compilers don't tell an imaginary (or real) part of -0 from +0; this stays, at
infinities too. Where the standard leaves a sign open it may be another than
NumPy's. Cost: two to six comparisons and selects an element, fused with the
function (docs/array_api.md).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
import functools
from typing import Any, NamedTuple

from jax._src import dtypes
from jax._src.array_api import cpu_rules
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo

import numpy as np

_Parts = tuple[Any, Any]
_Table = Callable[['_Floats', Any, Any, Any, Any], _Parts]


def correct(primitives: Mapping[str, Any]) -> None:
  """Corrects what the primitives of `_TABLES` are lowered to for CPUs.

  Args:
    primitives: by their names in ``jax._src.lax.lax``.
  """
  for name, table in _TABLES.items():
    if name not in primitives:  # of newer releases
      continue
    cpu_rules.correct(primitives[name],
                      functools.partial(_corrected, table=table))


def _corrected(rule: Callable[..., Any], table: _Table) -> Callable[..., Any]:
  """The lowering rule that corrects what `rule` gives by `table`."""
  def lowered(ctx: mlir.LoweringRuleContext, x: Any, /, **params: Any) -> Any:
    out = rule(ctx, x, **params)
    avals: Any = ctx.avals_in
    aval, = avals
    if (not dtypes.issubdtype(aval.dtype, np.complexfloating)
        or 'cpu' not in cpu_rules.platforms(ctx)):
      return out
    y, = out
    floats = _Floats(ctx, aval.update(dtype=np.finfo(aval.dtype).dtype))
    corrected = hlo.complex(*table(floats, hlo.real(x), hlo.imag(x),
                                   hlo.real(y), hlo.imag(y)))
    return [cpu_rules.on_cpu(ctx, corrected, y)]
  return lowered


class _Floats(NamedTuple):
  """Operations on arrays of one shape and dtype in the lowered module."""
  ctx: mlir.LoweringRuleContext
  aval: Any

  def full(self, value: float, dtype: Any = None) -> Any:
    # Not full_like_aval: it asks whether there are 64 bits now, when lowered.
    aval = self.aval.update(dtype=dtype or self.aval.dtype)
    return mlir.broadcast_in_dim(
        self.ctx, mlir.ir_constant(np.array(value, aval.dtype)), aval,
        broadcast_dimensions=())

  def where(self, condition: Any, x: Any, y: Any) -> Any:
    if isinstance(x, float):
      x = self.full(x)
    return hlo.select(condition, x, y)

  def is_inf(self, x: Any) -> Any:
    return mlir.compare_hlo(hlo.abs(x), self.full(np.inf), 'EQ', 'FLOAT')

  def is_nan(self, x: Any) -> Any:
    return mlir.compare_hlo(x, x, 'NE', 'FLOAT')

  def is_zero_and_nan(self, x: Any, y: Any) -> Any:
    """True if `x` is a zero, no subnormal number, and `y` is nan."""
    # CPUs compare subnormal numbers as zero, and the compiler makes that of a
    # comparison of the bits with 0. They are compared with a bit of `y`'s
    # exponent instead, 1 if it is nan.
    shift = 8 * self.aval.dtype.itemsize - 2
    dtype = np.dtype(f'u{self.aval.dtype.itemsize}')
    one, place = (self.full(n, dtype) for n in (1, shift))
    bits = ir.RankedTensorType.get(ir.RankedTensorType(x.type).shape,
                                   mlir.dtype_to_ir_type(dtype))
    x, exponent = (hlo.bitcast_convert(bits, z) for z in (x, y))
    exponent = hlo.and_(hlo.shift_right_logical(exponent, place), one)
    zero = mlir.compare_hlo(hlo.shift_left(x, one), exponent, 'LT', 'UNSIGNED')
    return hlo.and_(self.is_nan(y), zero)


def _log(f: _Floats, a: Any, b: Any, p: Any, q: Any) -> _Parts:
  return f.where(hlo.or_(f.is_inf(a), f.is_inf(b)), np.inf, p), q


def _tanh(f: _Floats, a: Any, b: Any, p: Any, q: Any) -> _Parts:
  return f.where(f.is_zero_and_nan(a, b), a, p), q


def _asinh(f: _Floats, a: Any, b: Any, p: Any, q: Any) -> _Parts:
  p = f.where(hlo.and_(f.is_nan(a), hlo.is_finite(b)), np.nan, p)
  return p, f.where(f.is_zero_and_nan(b, a), b, q)


def _acosh(f: _Floats, a: Any, b: Any, p: Any, q: Any) -> _Parts:
  return f.where(hlo.and_(f.is_nan(b), hlo.is_finite(a)), np.nan, p), q


def _acos(f: _Floats, a: Any, b: Any, p: Any, q: Any) -> _Parts:
  q, p = _acosh(f, a, b, q, p)
  return f.where(f.is_zero_and_nan(a, b), np.pi / 2, p), q


def _atanh(f: _Floats, a: Any, b: Any, p: Any, q: Any) -> _Parts:
  lost = hlo.or_(f.is_nan(b), hlo.and_(f.is_nan(a), hlo.is_finite(b)))
  return _tanh(f, a, b, p, f.where(lost, np.nan, q))


def _of_turned(table: _Table) -> _Table:
  """The table of ``-j f(jz)``, of that of ``f``."""
  def turned(f: _Floats, a: Any, b: Any, p: Any, q: Any) -> _Parts:
    real, imag = table(f, hlo.negate(b), a, hlo.negate(q), p)
    return imag, hlo.negate(real)
  return turned


_TABLES: dict[str, _Table] = {
    'log1p_p': _log, 'log2_p': _log,
    'tanh_p': _tanh, 'tan_p': _of_turned(_tanh),
    'asinh_p': _asinh, 'acosh_p': _acosh, 'atanh_p': _atanh,
    'asin_p': _of_turned(_asinh), 'acos_p': _acos,
    'atan_p': _of_turned(_atanh),
}
