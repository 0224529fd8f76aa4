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
"""Minima and maxima that keep nan on CPUs (jax#39887).

Two parts of the CPU's compiler and runtime take ``max`` for ``a > b ? a : b``,
which forgets a nan on one side. From jaxlib 0.10.2 on a library computes
reductions of 4096 elements or more, with the elementwise operations before
them: ``max(x)`` was a number, as was ``sum(maximum(x, 0))``. And on every
jaxlib the devices of a CPU compare what they reduce together so: ``pmax``, and
the maximum of an array that is split among devices.

What is corrected is the lowering for CPUs. Floats are compared as integers of
the same order, which neither part gets wrong: the bits, of negative numbers
with all but the sign turned, count from -nan to nan.

* *Reductions over minor axes* take the greatest and the least such integer at
  once; either of them tells of a nan. Of those that the compiler makes code of,
  it is the fastest (docs/array_api.md has figures).
* *Over other axes* a reducer that selects what isn't comparable to itself.
* *Among devices, of windows, and of bfloat16 over other axes*: the integers are
  shifted so that all nans lie beyond the last infinity, at the end that wins.
  So one reduction of unsigned integers has the result, by the same collectives.
* *Elementwise*: an operand that is nan is selected, after the compiler's
  value. The library doesn't take a select, so it leaves the maximum before it
  alone.

Limits: a function of the user's own in ``lax.reduce`` is corrected where it is
lowered for one device and the maximum stands in it, not in a jitted function
that was lowered before. ``pmax`` in a module for several platforms stays as it
was. Modules that another release exported keep what they say. Which bits a nan
has, and of zeros which sign, is left open, as it was.

Cost: at 1 Mi elements 0.9 to 1.4 times the library's time, and 1.7 for bfloat16
over other axes than minor ones. Elementwise, a comparison and a select in the
same loop; where the result is summed at once, 1.7 times the library's time.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
import contextlib
import functools
import math
import threading
from typing import Any

from jax._src import core
from jax._src import dtypes
from jax._src.array_api import cpu_rules
from jax._src.interpreters import mlir
from jax._src.lib.mlir import ir
from jax._src.lib.mlir.dialects import func as func_dialect
from jax._src.lib.mlir.dialects import hlo
from jax._src.mend import releases

import numpy as np

_Lowering = Callable[..., Any]

# What the compiler's library doesn't take is left to the compiler's own code.
_LIBRARY_LEAST = 4096
_SIZES = frozenset([int])


class _InReducer(threading.local):
  """True while a reducer of the user's is lowered that the library may take."""
  value = False


_in_reducer = _InReducer()


def correct_lax(primitives: Mapping[str, Any]) -> None:
  """Corrects reductions and elementwise functions.

  Args:
    primitives: by their names in ``jax._src.lax.lax``.
  """
  for name, greatest in (('max', True), ('min', False)):
    cpu_rules.correct(primitives[f'reduce_{name}_p'],
                      functools.partial(_reduction, greatest=greatest))
    cpu_rules.correct(primitives[f'{name}_p'], _elementwise)
  cpu_rules.correct(primitives['reduce_p'], _of_user)


def correct_windows(primitives: Mapping[str, Any]) -> None:
  """Corrects reductions of windows.

  Args:
    primitives: by their names in ``jax._src.lax.windowed_reductions``.
  """
  for name, greatest in (('max', True), ('min', False)):
    cpu_rules.correct(primitives[f'reduce_window_{name}_p'],
                      functools.partial(_windows, greatest=greatest))
  cpu_rules.correct(primitives['reduce_window_p'], _of_user)


def correct_collectives(primitives: Mapping[str, Any]) -> None:
  """Corrects reductions among devices.

  Args:
    primitives: by their names in ``jax._src.lax.parallel``.
  """
  for name, greatest in (('max', True), ('min', False)):
    cpu_rules.correct(primitives[f'p{name}_p'],
                      functools.partial(_collective, greatest=greatest))


def _reduction(rule: _Lowering, greatest: bool) -> _Lowering:
  """The rule of ``reduce_max`` or ``reduce_min``, from its own."""
  def lowered(ctx: mlir.LoweringRuleContext, x: Any, /, **params: Any) -> Any:
    aval, = ctx.avals_in
    axes = params['axes']
    if not axes or not _is_float(aval) or not _is_for_cpu(ctx):
      return rule(ctx, x, **params)
    if _is_partitioned(ctx):
      corrected = _by_integers(rule, ctx, x, greatest, **params)
    elif _may_be_in_library(aval):
      here = functools.partial(_here, rule, ctx, aval=aval, greatest=greatest,
                               **params)
      corrected = _called(ctx, x, greatest, axes, here)
    else:
      return rule(ctx, x, **params)
    plain = rule(ctx, x, **params)[0] if _is_for_others(ctx) else None
    return [cpu_rules.on_cpu(ctx, corrected, plain)]
  return lowered


def _windows(rule: _Lowering, greatest: bool) -> _Lowering:
  """The rule of ``reduce_window_max`` or ``reduce_window_min``."""
  def lowered(ctx: mlir.LoweringRuleContext, x: Any, /, **params: Any) -> Any:
    aval, = ctx.avals_in
    # The library takes windows side by side.
    apart = all(size in (1, stride) for size, stride in zip(
        params['window_dimensions'], params['window_strides']))
    if (not apart or not _is_float(aval) or not _is_for_cpu(ctx)
        or not _may_be_in_library(aval)):
      return rule(ctx, x, **params)
    corrected = _by_integers(rule, ctx, x, greatest, **params)
    plain = rule(ctx, x, **params)[0] if _is_for_others(ctx) else None
    return [cpu_rules.on_cpu(ctx, corrected, plain)]
  return lowered


def _collective(rule: _Lowering, greatest: bool) -> _Lowering:
  """The rule of ``pmax`` or ``pmin``, of one operand or of several."""
  def lowered(ctx: mlir.LoweringRuleContext, *args: Any, **params: Any) -> Any:
    if not _is_for_cpu(ctx) or _is_for_others(ctx):
      return rule(ctx, *args, **params)
    orders = [_Order(ctx, aval, greatest) if _is_float(aval) else None
              for aval in ctx.avals_in]
    args = [o.integers(x) if o else x for o, x in zip(orders, args)]
    avals_in, avals_out = (
        [aval.update(dtype=o.unsigned) if o else aval
         for o, aval in zip(orders, avals)]
        for avals in (ctx.avals_in, ctx.avals_out))
    out = rule(ctx.replace(avals_in=avals_in, avals_out=avals_out), *args,
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
    reduced = _in_reducer.value
    if (not _is_float(aval) or not _is_for_cpu(ctx) or
        # It has no elementwise operations of float16.
        not (reduced or _may_be_in_library(aval) and aval.dtype != np.float16)):
      return out
    plain, = out
    # One of them may be a scalar. A select of either would be enough, but not
    # of one that turns out to be constant, whose select the compiler drops.
    corrected = plain
    for operand, operand_aval in zip((x, y), ctx.avals_in):
      if operand_aval.shape == aval.shape:
        corrected = hlo.select(_is_nan(operand), operand, corrected)
    return [cpu_rules.on_cpu(ctx, corrected, plain)]
  return lowered


def _of_user(rule: _Lowering) -> _Lowering:
  """The rule of ``reduce`` or ``reduce_window`` with any function."""
  def lowered(ctx: mlir.LoweringRuleContext, *args: Any, **params: Any) -> Any:
    # Devices reduce together by functions that the runtime knows, no others.
    reduced = (_is_for_cpu(ctx) and not _is_partitioned(ctx) and
               any(_is_float(a) and _may_be_in_library(a)
                   for a in ctx.avals_in))
    with _reducer(reduced):
      return rule(ctx, *args, **params)
  return lowered


@contextlib.contextmanager
def _reducer(value: bool):
  before, _in_reducer.value = _in_reducer.value, value
  try:
    yield
  finally:
    _in_reducer.value = before


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
  context = ctx.module_context.axis_context
  mesh = getattr(context, 'mesh', None)
  if mesh is not None:  # in shard_map
    return any(mesh.shape[name] > 1 for name in mesh.axis_names
               if name not in context.manual_axes)
  return getattr(context, 'num_devices', 1) > 1


def _may_be_in_library(aval: Any) -> bool:
  """True if the library may be given operations on such an array."""
  if not releases.library_forgets_nan():
    return False
  return not _is_constant(aval) or math.prod(aval.shape) >= _LIBRARY_LEAST


def _is_constant(aval: Any) -> bool:
  """True if no size of a shape is symbolic."""
  return _SIZES.issuperset(map(type, aval.shape))


# What is emitted.


def _is_nan(x: Any) -> Any:
  return mlir.compare_hlo(x, x, 'NE', 'FLOAT')


def _by_integers(rule: _Lowering, ctx: mlir.LoweringRuleContext, x: Any,
                 greatest: bool, **params: Any) -> Any:
  """The reduction that a rule emits, of integers in the floats' order."""
  (aval,), (out,) = ctx.avals_in, ctx.avals_out
  order = _Order(ctx, aval, greatest)
  y, = rule(ctx.replace(avals_in=[aval.update(dtype=order.unsigned)],
                        avals_out=[out.update(dtype=order.unsigned)]),
            order.integers(x), **params)
  return order.floats(y, out)


def _called(ctx: mlir.LoweringRuleContext, x: Any, greatest: bool,
            axes: Sequence[int], emit: Callable[[Any], Any]) -> Any:
  """A call of a function that the module has once for each reduction and type.

  Each layer of a network has such a reduction, of the same type. Lowering keeps
  time with the number of operations; the compiler puts them in the call's place
  before anything else.
  """
  out, = ctx.avals_out
  if (not _is_constant(ctx.avals_in[0]) or
      getattr(ctx.jaxpr_eqn_ctx, 'compute_type', None) is not None):
    return emit(x)  # which reads the sizes, or is marked, where it stands
  module = ctx.module_context
  name = 'reduce_max' if greatest else 'reduce_min'
  key = ('nan_extrema', name, tuple(sorted(axes)), x.type)
  kind = _type_of(x, 0).element_type
  if key not in module.cached_primitive_lowerings:
    result = ir.RankedTensorType.get(out.shape, kind)
    function = func_dialect.FuncOp(
        f'{name}_keeping_nan', ir.FunctionType.get([x.type], [result]),
        ip=module.ip)
    function.attributes['sym_visibility'] = ir.StringAttr.get('private')
    module.symbol_table.insert(function)
    block = function.add_entry_block()
    with ir.InsertionPoint(block):
      func_dialect.return_([emit(block.arguments[0])])
    module.cached_primitive_lowerings[key] = function
  function = module.cached_primitive_lowerings[key]
  return func_dialect.CallOp(
      function.type.results, ir.FlatSymbolRefAttr.get(function.name.value),
      [x]).result


def _here(rule: _Lowering, ctx: mlir.LoweringRuleContext, x: Any, aval: Any,
          greatest: bool, axes: Sequence[int], **params: Any) -> Any:
  """The reduction on one device: minor axes first, then the others."""
  axes = sorted(axes)  # they come as the user wrote them
  minor = [i for i in axes if set(range(i, aval.ndim)) <= set(axes)]
  if minor:
    left = core.ShapedArray(aval.shape[:minor[0]], aval.dtype)
    x = _over_minor_axes(ctx, x, aval, left, greatest)
    aval, axes = left, [i for i in axes if i not in minor]
  if not axes:
    return x
  if aval.dtype == dtypes.bfloat16:  # which the compiler compares one by one
    return _by_integers(rule, ctx.replace(avals_in=[aval]), x, greatest,
                        axes=axes, **params)
  return _selecting(ctx, x, aval, axes, greatest)


def _over_minor_axes(ctx: mlir.LoweringRuleContext, x: Any, aval: Any, out: Any,
                     greatest: bool) -> Any:
  """The reduction over the axes that `out` lacks, the last ones of `aval`."""
  order = _Order(ctx, aval, greatest)
  keys = order.signed_integers(x)
  kind = _type_of(keys, out.ndim)
  scalar = ir.RankedTensorType.get([], kind.element_type)
  # Of no elements, which a symbolic size can mean, the infinities remain.
  inits = [mlir.ir_constant(np.array(v, order.signed))
           for v in (~order.infinity, order.infinity)]
  op = hlo.ReduceOp([kind, kind], [keys, keys], inits,
                    mlir.dense_int_array(range(out.ndim, aval.ndim)))
  block = op.regions[0].blocks.append(*[scalar] * 4)
  with ir.InsertionPoint(block):
    a, b, c, d = block.arguments
    hlo.return_([hlo.maximum(a, c), hlo.minimum(b, d)])
  most, least = op.results
  has_nan = hlo.or_(
      mlir.compare_hlo(most, order.full(order.infinity, out), 'GT', 'SIGNED'),
      mlir.compare_hlo(least, order.full(~order.infinity, out), 'LT', 'SIGNED'))
  found = order.of_signed(most if greatest else least, out)
  return hlo.select(has_nan, order.full(np.nan, out, aval.dtype), found)


def _selecting(ctx: mlir.LoweringRuleContext, x: Any, aval: Any,
               axes: Sequence[int], greatest: bool) -> Any:
  """The reduction by a function that selects what is nan."""
  kind = ir.RankedTensorType(x.type)
  shape = [n for i, n in enumerate(kind.shape) if i not in axes]
  scalar = ir.RankedTensorType.get([], kind.element_type)
  op = hlo.ReduceOp(
      [ir.RankedTensorType.get(shape, kind.element_type)], [x],
      [mlir.ir_constant(np.array(-np.inf if greatest else np.inf,
                                 aval.dtype))],
      mlir.dense_int_array(axes))
  block = op.regions[0].blocks.append(scalar, scalar)
  with ir.InsertionPoint(block):
    a, b = block.arguments
    kept = hlo.or_(_is_nan(a), mlir.compare_hlo(
        a, b, 'GE' if greatest else 'LE', 'FLOAT'))
    hlo.return_([hlo.select(kept, a, b)])
  return op.result


def _type_of(x: Any, rank: int, dtype: Any = None) -> Any:
  """The type of an array like `x`, of its first axes or of another dtype."""
  kind = ir.RankedTensorType(x.type)
  element = mlir.dtype_to_ir_type(dtype) if dtype else kind.element_type
  return ir.RankedTensorType.get(list(kind.shape)[:rank], element)


class _Order:
  """Integers in the order of floats, nans among them, and back.

  What it emits is in one block, so each of its constants is there once.
  """

  def __init__(self, ctx: mlir.LoweringRuleContext, aval: Any, greatest: bool):
    self.ctx = ctx
    self.aval = aval
    self.is_partitioned = _is_partitioned(ctx)
    self.constants: dict[Any, Any] = {}
    bits = 8 * aval.dtype.itemsize
    self.signed = np.dtype(f'int{bits}')
    self.unsigned = np.dtype(f'uint{bits}')
    self.infinity = int(np.array(np.inf, aval.dtype).view(self.signed))
    # Where unsigned integers begin: at -inf, or above inf.
    self.first = ~self.infinity if greatest else self.infinity + 1

  def signed_integers(self, x: Any) -> Any:
    """From -nan over -inf, zero and inf to nan."""
    bits = hlo.bitcast_convert(
        _type_of(x, self.aval.ndim, self.signed), x)
    return self._turned(bits, self.aval)

  def of_signed(self, y: Any, aval: Any) -> Any:
    bits = self._turned(y, aval)
    return hlo.bitcast_convert(
        _type_of(y, aval.ndim, self.aval.dtype), bits)

  def integers(self, x: Any) -> Any:
    """Unsigned: nans are above inf for a maximum, below -inf for a minimum."""
    y = hlo.subtract(self.signed_integers(x), self.full(self.first, self.aval))
    return hlo.bitcast_convert(_type_of(y, self.aval.ndim, self.unsigned), y)

  def floats(self, y: Any, aval: Any) -> Any:
    """The floats of unsigned integers, in an array like `aval`."""
    y = hlo.bitcast_convert(_type_of(y, aval.ndim, self.signed), y)
    return self.of_signed(hlo.add(y, self.full(self.first, aval)), aval)

  def full(self, value: float, aval: Any, dtype: Any = None) -> Any:
    """An array like `aval` of one number, of this order or of a float type."""
    dtype = self.signed if dtype is None else dtype
    key = value, aval.shape, dtype
    if key not in self.constants:
      self.constants[key] = self._constant(value, aval, dtype)
    return self.constants[key]

  def _constant(self, value: float, aval: Any, dtype: Any) -> Any:
    if not self.is_partitioned and _is_constant(aval):
      element = mlir.dtype_to_ir_type(np.dtype(dtype))
      kind = ir.IntegerAttr if dtype is self.signed else ir.FloatAttr
      return hlo.constant(ir.DenseElementsAttr.get_splat(
          ir.RankedTensorType.get(aval.shape, element),
          kind.get(element, value)))
    # Not full_like_aval: it asks whether there are 64 bits now, when lowered.
    return mlir.broadcast_in_dim(
        self.ctx, mlir.ir_constant(np.array(value, dtype)),
        aval.update(dtype=np.dtype(dtype)), broadcast_dimensions=())

  def _turned(self, bits: Any, aval: Any) -> Any:
    """All bits but the sign turned, of what is negative."""
    sign = hlo.shift_right_arithmetic(
        bits, self.full(8 * self.signed.itemsize - 1, aval))
    turned = self.full(np.iinfo(self.signed).max, aval)
    return hlo.xor(bits, hlo.and_(sign, turned))
