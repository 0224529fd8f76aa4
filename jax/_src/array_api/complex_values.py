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
"""Complex functions at infinities and nan (jax#27606).

The standard has a table for each complex function: what it is where a part of
its argument is an infinity or nan. C and NumPy have the same one. Compilers
expand most of these functions into products of real ones, where an infinity
times nan is nan, though the table has an infinity or a zero: ``exp(-inf+nanj)``
was nan and is 0, ``sqrt(nan+infj)`` was nan and is ``inf+infj``.

What is corrected is the *lowering* of the primitives, and only that of complex
arguments: the compiler's value, then a few selects on it, each of which asks
for a part that is infinite or nan. So what is traced, differentiated, batched
and transposed stays as it was, finite arguments keep their values, and nothing
changes for real ones. A table below takes both parts of the argument, then both
of the compiler's value, and gives those of the result. ``sin``, ``tan``,
``asin`` and ``atan`` are ``-j f(jz)`` of a hyperbolic ``f``, with its table.

Limits: ``exp``, ``expm1``, ``sin``, ``cos``, ``tan``, ``sinh``, ``cosh`` and
``tanh`` are corrected where a part is nan, and keep the compiler's value where
an infinity meets an infinity or a zero: ``exp(-inf+infj)`` is nan, as
upstream's tests state, from mpmath. Branch cuts. Along them the compilers don't
tell an imaginary (or real) part of -0 from +0, ``sqrt(-1-0j)`` is 1j; this
stays, at infinities too. Where the standard leaves a sign open it may be
another than NumPy's. Cost: two to six comparisons and selects an element, fused
with the function (docs/array_api.md).
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jax._src import dtypes
from jax._src.interpreters import mlir

import numpy as np

_Parts = tuple[Any, Any]
_Table = Callable[[Any, Any, Any, Any], _Parts]


def correct(primitives: Mapping[str, Any]) -> None:
  """Corrects what the primitives of `_TABLES` are lowered to.

  Args:
    primitives: by their names in ``jax._src.lax.lax``.
  """
  for name, table in _TABLES.items():
    if name not in primitives:  # of newer releases
      continue
    primitive = primitives[name]
    specific = mlir._platform_specific_lowerings
    for platform in (None, *(p for p in specific if primitive in specific[p])):
      entry = (specific[platform] if platform else mlir._lowerings)[primitive]
      # Newer releases keep more than the rule.
      rule = getattr(entry, "rule", entry)
      mlir.register_lowering(primitive, _corrected(rule, table), platform)


def _corrected(rule: Callable[..., Any], table: _Table) -> Callable[..., Any]:
  """The lowering rule that corrects what `rule` gives by `table`."""
  def select(x: Any, y: Any) -> Any:
    lax = _lax()
    return lax.complex(*table(lax.real(x), lax.imag(x), lax.real(y),
                              lax.imag(y)))

  def lowered(ctx: mlir.LoweringRuleContext, x: Any, /, **params: Any) -> Any:
    out = rule(ctx, x, **params)
    aval, = ctx.avals_in
    if not dtypes.issubdtype(aval.dtype, np.complexfloating):
      return out
    both = ctx.replace(primitive=None, avals_in=[aval, *ctx.avals_out],
                       tokens_out=None)
    return mlir.lower_fun(select, multiple_results=False)(both, x, *out)
  return lowered


def _lax() -> Any:
  from jax._src.lax import lax  # not on top: lax imports this module
  return lax


def _const(x: Any, value: float) -> Any:
  return _lax().full_like(x, value)


def _is(x: Any, value: float) -> Any:
  return _lax().eq(x, _const(x, value))


def _is_inf(x: Any) -> Any:
  return _is(_lax().abs(x), np.inf)


def _is_nan(x: Any) -> Any:
  return _lax().ne(x, x)


def _is_finite(x: Any) -> Any:
  return _lax().is_finite(x)


def _both(x: Any, y: Any) -> Any:
  return _lax().bitwise_and(x, y)


def _either(x: Any, y: Any) -> Any:
  return _lax().bitwise_or(x, y)


def _exp(a: Any, b: Any, p: Any, q: Any, least: float = 0.) -> _Parts:
  lax = _lax()
  lost = _is_nan(b)
  p = lax.select(_both(lost, _is_inf(a)), lax.max(a, _const(a, least)), p)
  return p, lax.select(_both(lost, _is(a, -np.inf)), _const(a, 0.), q)


def _expm1(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  return _exp(a, b, p, q, -1.)


def _log(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  return _lax().select(_either(_is_inf(a), _is_inf(b)), _const(a, np.inf),
                       p), q


def _sqrt(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  lax = _lax()
  p = lax.select(_either(_is_inf(b), _is(a, np.inf)), _const(a, np.inf), p)
  q = lax.select(_is_inf(b), b, q)
  lost = _both(_is(a, -np.inf), _is_nan(b))
  return p, lax.select(lost, _const(a, np.inf), q)


def _sinh(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  lost = _both(_is_nan(b), _either(_is_inf(a), _is(a, 0.)))
  return _lax().select(lost, a, p), q


def _cosh(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  lax = _lax()
  lost = _is_nan(b)
  p = lax.select(_both(lost, _is_inf(a)), _const(a, np.inf), p)
  return p, lax.select(_both(lost, _is(a, 0.)), _const(a, 0.), q)


def _cos(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  return _cosh(_lax().neg(b), a, p, q)


def _tanh(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  return _lax().select(_both(_is_nan(b), _is(a, 0.)), a, p), q


def _asinh(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  lax = _lax()
  p = lax.select(_both(_is_nan(a), _is_finite(b)), _const(a, np.nan), p)
  return p, lax.select(_both(_is_nan(a), _is(b, 0.)), b, q)


def _acosh(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  lax = _lax()
  p = lax.select(_both(_is_nan(b), _is_finite(a)), _const(a, np.nan), p)
  lost = _both(_is_nan(b), _is(a, 0.))
  return p, lax.select(lost, _const(a, np.pi / 2), q)


def _acos(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  return _acosh(a, b, q, p)[::-1]


def _atanh(a: Any, b: Any, p: Any, q: Any) -> _Parts:
  lax = _lax()
  p = lax.select(_both(_is_nan(b), _is(a, 0.)), a, p)
  lost = _either(_is_nan(b), _both(_is_nan(a), _is_finite(b)))
  return p, lax.select(lost, _const(a, np.nan), q)


def _of_turned(table: _Table) -> _Table:
  """The table of ``-j f(jz)``, of that of ``f``."""
  def turned(a: Any, b: Any, p: Any, q: Any) -> _Parts:
    lax = _lax()
    real, imag = table(lax.neg(b), a, lax.neg(q), p)
    return imag, lax.neg(real)
  return turned


_TABLES: dict[str, _Table] = {
    "exp_p": _exp, "expm1_p": _expm1, "log_p": _log, "log1p_p": _log,
    "log2_p": _log, "sqrt_p": _sqrt,
    "sinh_p": _sinh, "cosh_p": _cosh, "tanh_p": _tanh,
    "sin_p": _of_turned(_sinh), "cos_p": _cos, "tan_p": _of_turned(_tanh),
    "asinh_p": _asinh, "acosh_p": _acosh, "atanh_p": _atanh,
    "asin_p": _of_turned(_asinh), "acos_p": _acos,
    "atan_p": _of_turned(_atanh),
}
