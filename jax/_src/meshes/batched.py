# SPDX-License-Identifier: Apache-2.0
"""A shard_map that closes over what vmap(..., spmd_axis_name=) maps.

Within the ``shard_map`` each device holds a part of the batch. An argument of
the ``shard_map`` enters as that part; what its function captures was taken with
the whole batch, so shapes did not fit, or fitted by chance and were wrong
(jax#17874, jax#23476).

Here each captured value becomes an argument, whose spec names the axis. Which
are captured is known when the function has been traced, so where there are any,
it is traced a second time. Where the operations are executed one by one, which
can't be undone, each device takes its part of the captured value instead.

The index along the batch's axis (``lax.axis_index`` of its name) counts from
the part's first element.

Where a value that is mapped meets one that isn't, the casts that the check asks
for are made elsewhere: by ``varying.rules.spmd_axis`` from 0.6.0 on, and by
``replication.rules.unmapped`` on 0.5.3.

Cost: nothing for a function that captures no mapped value; for one that does,
each ``shard_map`` around doubles the traces of those within it.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from jax._src import core
from jax._src.interpreters import batching
from jax._src.mend import traces
from jax._src.partition_spec import PartitionSpec as P
import numpy as np


class Captures:
  """The values of one batch that a shard_map's function captures.

  Attributes:
    outer: the batch, outside of the shard_map.
    parts: each captured tracer's part, where the shard_map is given it.
    found: those that it is not given, in the order of their use.
  """

  def __init__(self, outer):
    self.outer = outer
    self.parts: dict[int, Any] = {}
    self.found: dict[int, Any] = {}


class Inside(batching.AxisData):
  """The axis of a batch within a shard_map, where a device has its part."""
  captures: Captures

  @classmethod
  def of(cls, data, captures: Captures) -> Inside:
    self = cls(*(getattr(data, f) for f in data.__dataclass_fields__))
    object.__setattr__(self, 'captures', captures)
    return self

  @property
  def has_whole(self) -> bool:
    """True over mesh axes of one device that the shard_map leaves automatic."""
    names = (self.spmd_name if isinstance(self.spmd_name, tuple)
             else (self.spmd_name,))
    return (self.size == self.captures.outer.size and
            core.get_axis_env().axis_sizes.keys().isdisjoint(names))


class _Retrace(Exception):
  """The function has been traced, and captures mapped values."""


def of_captured(trace, tracer) -> tuple[Any, Any]:
  """The value and batch dimension that ``trace`` sees of a mapped value.

  Args:
    trace: the batch that asks.
    tracer: a value of this batch, or of one around the shard_map.

  Returns:
    The device's part and its batch dimension, inside of a shard_map that
    captures the value; else what the tracer holds.
  """
  captures = getattr(trace.axis_data, 'captures', None)
  if (captures is None or tracer.batch_dim is None
      or tracer._trace.axis_data is not captures.outer):
    return tracer.val, tracer.batch_dim
  part = captures.parts.get(id(tracer))
  if part is not None:
    return part.val, part.batch_dim
  captures.found[id(tracer)] = tracer
  return _part(trace, tracer), tracer.batch_dim


def _part(trace, tracer):
  """This device's part of a value that every device holds whole."""
  from jax._src.lax import slicing  # imports this
  if trace.axis_data.has_whole:
    return tracer.val
  with core.set_current_trace(trace.parent_trace):
    return slicing.dynamic_slice_in_dim(
        tracer.val, _first(trace.axis_data), trace.axis_data.size,
        tracer.batch_dim)


def _first(data: Inside):
  """The index in the batch of the first element of the device's part."""
  from jax._src.lax import lax, parallel  # they import this
  return lax.mul(parallel.axis_index(data.spmd_name), data.size)


def index(data: batching.AxisData) -> Any:
  """The indices of a batch's elements, of the device's part in a shard_map.

  Args:
    data: the batch's axis.

  Returns:
    An int32 array of one dimension.
  """
  from jax._src.lax import lax  # imports this
  places = lax.iota(np.int32, data.size)
  if not isinstance(data, Inside) or data.has_whole:
    return places
  return lax.add(places, _first(data))


def taking_captures(process: Callable[..., Any]) -> Callable[..., Any]:
  """Lets a batched shard_map take what its function captures of the batch.

  Args:
    process: binds a ``shard_map`` under ``vmap``, of a trace, the primitive, a
      function, its arguments and parameters.

  Returns:
    The same, with captured values of a batch that names mesh axes among the
    arguments.
  """
  @functools.wraps(process)
  def process_shard_map(trace, prim, fun, args, /, *rest, **params):
    if trace.axis_data.spmd_name is None:
      return process(trace, prim, fun, args, *rest, **params)
    found: list = []
    if traces.is_staged(trace):
      captures = Captures(trace.axis_data)
      retrace = _Retrace()
      try:
        return process(trace, prim, _with_captures(fun, captures, (), retrace),
                       args, *rest, **params)
      except _Retrace as e:
        if e is not retrace:
          raise
      found = list(captures.found.values())
      traces.retraceable(fun)
    specs = 'in_specs' if 'in_specs' in params else 'in_names'
    params[specs] = (*(P() if specs == 'in_specs' else {} for _ in found),
                     *params[specs])
    if found and 'debug_info' in params:
      params['debug_info'] = params['debug_info'].with_unknown_names()
    elif found and hasattr(fun, 'with_unknown_names'):
      fun = fun.with_unknown_names()  # since 0.8 JAX counts them
    fun = _with_captures(fun, Captures(trace.axis_data), found, None)
    return process(trace, prim, fun, [*found, *args], *rest, **params)
  return process_shard_map


def _with_captures(fun, captures: Captures, found, retrace: _Retrace | None):
  """``fun``, whose first arguments are parts of what it captures."""
  def call(f, *args):
    trace = core.trace_ctx.trace
    trace.axis_data = Inside.of(trace.axis_data, captures)
    parts, args = args[:len(found)], args[len(found):]
    captures.parts = {id(x): part for x, part in zip(found, parts)}
    outs = f(*args)
    if retrace is not None and captures.found:
      raise retrace
    return outs
  if hasattr(fun, 'wrap'):  # 0.6.0
    return fun.wrap(call, (), None)
  return functools.partial(call, fun)
