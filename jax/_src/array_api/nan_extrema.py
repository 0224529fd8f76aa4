# SPDX-License-Identifier: Apache-2.0
"""Minima and maxima that keep nan on CPUs (jax#39887).

Two parts of the CPU's compiler and runtime take ``max`` for ``a > b ? a : b``,
which forgets a nan on one side. On every jaxlib the devices of a CPU compare
what they reduce together so: ``pmax``, and the maximum of an array that is
split among devices. And from jaxlib 0.10.2 on a library computes reductions of
4096 elements or more, with the elementwise operations before them: ``max(x)``
is a number, as is ``sum(maximum(x, 0))``.

What is corrected is the lowering for CPUs.

* *Beside a sum*: the compiler's own extremum, and beside it the sum of the
  squares of the same numbers. Squares are never negative, so their sum is nan
  if one of the numbers is, and for no other reason: infinities don't cancel,
  and what overflows is infinite. The library takes both reductions, and devices
  add what is nan to nan. The sum is in float32, or float64.
* *By integers*: floats are compared as integers of the same order. The bits, of
  negative numbers with all but the sign turned, count from -nan to nan; they
  are shifted so that all nans lie beyond the last infinity, at the end that
  wins. So one reduction of unsigned integers has the result, by the same
  collectives.
* *Elementwise*: an operand that is nan is selected, after the compiler's
  value. The library doesn't take a select, so it leaves the maximum before it
  alone.

By default only what devices reduce together is corrected, and only where that
costs little: ``pmax`` and ``pmin``, and reductions in a program for several
devices where there is no library, by integers. Everything else is lowered as
upstream lowers it, unless the option ``jax_cpu_nan_extrema`` is on: a reduction
then reads its operand a second time, which who has no nan would pay for
(docs/array_api.md and docs/proof/lowerings.md have figures).

Limits: functions of the user's own in ``lax.reduce`` stay as they are, as does
``pmax`` in a module for several platforms. Modules that another release, or the
option when it was off, exported keep what they say: a program that was exported
for one device and is called over several forgets a nan there. Which bits a nan
has, and of zeros which sign, is left open, as it was.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import functools
import math
from typing import Any

from jax._src import config
from jax._src import dtypes
from jax._src.array_api import cpu_rules
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import hlo
from jax._src.mend import releases

import numpy as np

_Lowering = Callable[..., Any]

# What the compiler's library doesn't take is left to the compiler's own code.
_LIBRARY_LEAST = 4096
_SIZES = frozenset([int])


def _new_option() -> Any:
  make = functools.partial(
      config.bool_state, 'jax_cpu_nan_extrema', False,
      'On CPUs, let minima and maxima keep nan where the compiler has them '
      'computed by a library that forgets it (jax#39887; from jaxlib 0.10.2 '
      'on). A reduction then takes up to three times as long, of float16 up to '
      'sixteen times.')
  if not releases.library_forgets_nan():
    return make()  # which changes nothing
  from jax._src.mend import trace_key  # older releases need an edit for it
  return trace_key.option(make)


cpu_nan_extrema = _new_option()


def correct_lax(primitives: Mapping[str, Any]) -> None:
  """Corrects reductions and elementwise functions.

  Args:
    primitives: by their names in ``jax._src.lax.lax``.
  """
  _, sums = cpu_rules.own_rule(primitives['reduce_sum_p'])
  for name, greatest in (('max', True), ('min', False)):
    cpu_rules.correct(
        primitives[f'reduce_{name}_p'],
        functools.partial(_reduction, sums=sums, greatest=greatest))
    cpu_rules.correct(primitives[f'{name}_p'], _elementwise)


def correct_windows(primitives: Mapping[str, Any]) -> None:
  """Corrects reductions of windows.

  Args:
    primitives: by their names in ``jax._src.lax.windowed_reductions``.
  """
  _, sums = cpu_rules.own_rule(primitives['reduce_window_sum_p'])
  for name in ('max', 'min'):
    cpu_rules.correct(primitives[f'reduce_window_{name}_p'],
                      functools.partial(_windows, sums=sums))


def correct_collectives(primitives: Mapping[str, Any]) -> None:
  """Corrects reductions among devices.

  Args:
    primitives: by their names in ``jax._src.lax.parallel``.
  """
  for name, greatest in (('max', True), ('min', False)):
    cpu_rules.correct(primitives[f'p{name}_p'],
                      functools.partial(_collective, greatest=greatest))


def _reduction(rule: _Lowering, sums: _Lowering, greatest: bool) -> _Lowering:
  """The rule of ``reduce_max`` or ``reduce_min``, from its own.

  Args:
    rule: the primitive's own.
    sums: that of ``reduce_sum``.
    greatest: whether the maximum is wanted.
  """
  def lowered(ctx: mlir.LoweringRuleContext, x: Any, /, **params: Any) -> Any:
    aval, = ctx.avals_in
    plain = functools.partial(rule, ctx, x, **params)
    if not params['axes'] or not _is_float(aval) or not _is_for_cpu(ctx):
      return plain()
    among_devices = _is_partitioned(ctx)
    if among_devices and not releases.library_forgets_nan():
      corrected = _by_integers(rule, ctx, x, greatest, **params)
      other = plain()[0] if _is_for_others(ctx) else None
    elif _is_asked_for(aval, of_any_size=among_devices):
      other, = plain()
      corrected = _beside_sum(sums, ctx, x, other, **params)
    else:
      return plain()
    return [cpu_rules.on_cpu(ctx, corrected, other)]
  return lowered


def _windows(rule: _Lowering, sums: _Lowering) -> _Lowering:
  """The rule of ``reduce_window_max`` or ``reduce_window_min``.

  Args:
    rule: the primitive's own.
    sums: that of ``reduce_window_sum``.
  """
  def lowered(ctx: mlir.LoweringRuleContext, x: Any, /, **params: Any) -> Any:
    out = rule(ctx, x, **params)
    aval, = ctx.avals_in
    # The library takes windows side by side.
    apart = all(size in (1, stride) for size, stride in zip(
        params['window_dimensions'], params['window_strides']))
    if (not apart or not _is_float(aval) or not _is_asked_for(aval)
        or not _is_for_cpu(ctx)):
      return out
    plain, = out
    corrected = _beside_sum(sums, ctx, x, plain, **params)
    return [cpu_rules.on_cpu(ctx, corrected, plain)]
  return lowered


def _collective(rule: _Lowering, greatest: bool) -> _Lowering:
  """The rule of ``pmax`` or ``pmin``, of one operand or of several."""
  def lowered(ctx: mlir.LoweringRuleContext, *args: Any, **params: Any) -> Any:
    if not _is_for_cpu(ctx) or _is_for_others(ctx):
      return rule(ctx, *args, **params)
    orders = [_Order(ctx, aval, greatest) if _is_float(aval) else None
              for aval in ctx.avals_in]
    values = [o.integers(x) if o else x for o, x in zip(orders, args)]
    avals_in, avals_out = (
        [aval.update(dtype=o.unsigned) if o else aval
         for o, aval in zip(orders, avals)]
        for avals in (ctx.avals_in, ctx.avals_out))
    out = rule(ctx.replace(avals_in=avals_in, avals_out=avals_out), *values,
               **params)
    return [o.floats(y, aval) if o else y
            for o, y, aval in zip(orders, out, ctx.avals_out)]
  return lowered


def _elementwise(rule: _Lowering) -> _Lowering:
  """The rule of ``max`` or ``min``, from its own."""
  def lowered(ctx: mlir.LoweringRuleContext, x: Any, y: Any, /,
              **params: Any) -> Any:
    out = rule(ctx, x, y, **params)
    aval, = ctx.avals_out
    if (not _is_float(aval) or not _is_asked_for(aval) or not _is_for_cpu(ctx)
        # It has no elementwise operations of float16.
        or aval.dtype == np.float16):
      return out
    plain, = out
    # One of them may be a scalar. A select of either would be enough, but not
    # of one that turns out to be constant, whose select the compiler drops.
    corrected = plain
    avals: Sequence[Any] = ctx.avals_in
    for operand, operand_aval in zip((x, y), avals):
      if operand_aval.shape == aval.shape:
        corrected = hlo.select(_is_nan(operand), operand, corrected)
    return [cpu_rules.on_cpu(ctx, corrected, plain)]
  return lowered


# What is asked of an operation.


def _is_float(aval: Any) -> bool:
  """True of the floats that have an integer type of their width."""
  return (dtypes.issubdtype(aval.dtype, np.floating) and
          aval.dtype.itemsize in (2, 4, 8))


def _is_for_cpu(ctx: mlir.LoweringRuleContext) -> bool:
  return 'cpu' in cpu_rules.platforms(ctx)


def _is_for_others(ctx: mlir.LoweringRuleContext) -> bool:
  return len(cpu_rules.platforms(ctx)) > 1


def _is_partitioned(ctx: mlir.LoweringRuleContext) -> bool:
  """True if the compiler may split an operation among devices."""
  context: Any = ctx.module_context.axis_context
  mesh = getattr(context, 'mesh', None)
  if mesh is not None:  # in shard_map
    return any(mesh.shape[name] > 1 for name in mesh.axis_names
               if name not in context.manual_axes)
  return getattr(context, 'num_devices', 1) > 1


def _is_asked_for(aval: Any, of_any_size: bool = False) -> bool:
  """True if the option is on, and the library may be given such an array."""
  if not cpu_nan_extrema.value or not releases.library_forgets_nan():
    return False
  return (of_any_size or not _is_constant(aval)
          or math.prod(aval.shape) >= _LIBRARY_LEAST)


def _is_constant(aval: Any) -> bool:
  """True if no size of a shape is symbolic."""
  return _SIZES.issuperset(map(type, aval.shape))


# What is emitted.


def _is_nan(x: Any) -> Any:
  return mlir.compare_hlo(x, x, 'NE', 'FLOAT')


def _beside_sum(sums: _Lowering, ctx: mlir.LoweringRuleContext, x: Any,
                extremum: Any, **params: Any) -> Any:
  """The extremum, or nan where the sum of the operand's squares is nan."""
  avals: Any = ctx.avals_in, ctx.avals_out
  (aval,), (out,) = avals
  wide = np.dtype(np.float64 if aval.dtype == np.float64 else np.float32)
  wide_aval, wide_out = aval.update(dtype=wide), out.update(dtype=wide)
  y = _converted(x, wide_aval)
  squares, = sums(ctx.replace(avals_in=[wide_aval], avals_out=[wide_out]),
                  hlo.multiply(y, y), **params)
  return hlo.select(_is_nan(squares), _converted(squares, out), extremum)


def _by_integers(rule: _Lowering, ctx: mlir.LoweringRuleContext, x: Any,
                 greatest: bool, **params: Any) -> Any:
  """The reduction that a rule emits, of integers in the floats' order."""
  avals: Any = ctx.avals_in, ctx.avals_out
  (aval,), (out,) = avals
  order = _Order(ctx, aval, greatest)
  y, = rule(ctx.replace(avals_in=[aval.update(dtype=order.unsigned)],
                        avals_out=[out.update(dtype=order.unsigned)]),
            order.integers(x), **params)
  return order.floats(y, out)


def _converted(x: Any, aval: Any) -> Any:
  kind = _type_of(x, aval.dtype)
  return x if kind == x.type else hlo.convert(kind, x)


def _type_of(x: Any, dtype: Any) -> Any:
  """The type of an array of another dtype."""
  return ir.RankedTensorType.get(ir.RankedTensorType(x.type).shape,
                                 mlir.dtype_to_ir_type(np.dtype(dtype)))


class _Order:
  """Integers in the order of floats, nans among them, and back.

  What it emits is in one block, so each of its constants is there once.
  """

  def __init__(self, ctx: mlir.LoweringRuleContext, aval: Any, greatest: bool):
    self.ctx = ctx
    self.aval = aval
    self.constants: dict[Any, Any] = {}
    bits = 8 * aval.dtype.itemsize
    self.signed = np.dtype(f'int{bits}')
    self.unsigned = np.dtype(f'uint{bits}')
    infinity = int(np.array(np.inf, aval.dtype).view(self.signed))
    # Where unsigned integers begin: at -inf, or above inf.
    self.first = ~infinity if greatest else infinity + 1

  def integers(self, x: Any) -> Any:
    """Unsigned: nans are above inf for a maximum, below -inf for a minimum."""
    bits = self._turned(
        hlo.bitcast_convert(_type_of(x, self.signed), x), self.aval)
    y = hlo.subtract(bits, self.full(self.first, self.aval))
    return hlo.bitcast_convert(_type_of(y, self.unsigned), y)

  def floats(self, y: Any, aval: Any) -> Any:
    """The floats of unsigned integers, in an array like `aval`."""
    y = hlo.bitcast_convert(_type_of(y, self.signed), y)
    bits = self._turned(hlo.add(y, self.full(self.first, aval)), aval)
    return hlo.bitcast_convert(_type_of(bits, self.aval.dtype), bits)

  def full(self, value: int, aval: Any) -> Any:
    """An array like `aval` of one number of this order."""
    key = value, aval.shape
    if key not in self.constants:
      # Not full_like_aval: it asks whether there are 64 bits now, when lowered.
      self.constants[key] = mlir.broadcast_in_dim(
          self.ctx, mlir.ir_constant(np.array(value, self.signed)),
          aval.update(dtype=self.signed), broadcast_dimensions=())
    return self.constants[key]

  def _turned(self, bits: Any, aval: Any) -> Any:
    """All bits but the sign turned, of what is negative."""
    sign = hlo.shift_right_arithmetic(
        bits, self.full(8 * self.signed.itemsize - 1, aval))
    turned = self.full(np.iinfo(self.signed).max, aval)
    return hlo.xor(bits, hlo.and_(sign, turned))
