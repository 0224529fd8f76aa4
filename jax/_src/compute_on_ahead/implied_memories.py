# SPDX-License-Identifier: Apache-2.0
"""Operands in two memories of which only one was chosen (jax#34041).

Since JAX 0.7.2 an array's type says its memory, and an operation wants one for
all its operands. What nobody placed has a memory nevertheless, the device's,
and an operation of it with an array in host memory is refused. Here it is moved
to where the other operand is, when an operation was refused, and only then:

* the indices of a gather, to where the indexed array is;
* to the host, an array that has no place of its own: a NumPy array, an
  uncommitted one, and in a trace what was made of such arrays and of scalars
  alone (scalars have no memory, and go with any).

Two operands that were placed stay refused, and what is an argument of a loop's
body or of the outermost `jit` is taken to be placed: its type is what a caller
was promised. ``mixed_memories`` words the error. A `jit` within another, a
function of jax.numpy that `jit` inlines, and an operation by itself are looked
at from outside, where it is known what their arguments are.

Cost: none where all operands are in one memory. A refused operation is traced
twice, at each call of it outside of `jit`; a refused `jit` once more for each
argument that can be moved, up to four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import threading
from typing import Any

from jax._src import core
from jax._src import sharding as sharding_lib
from jax._src.compute_on_ahead import mixed_memories
from jax._src.compute_on_ahead import transfers
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import anatomy
from jax._src.mend import foreign
from jax._src.mend import releases
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec
import numpy as np

# What puts its result somewhere, or says where it is.
_PLACING = frozenset({
    'device_put', 'sharding_constraint', 'reshard', 'mesh_cast',
    'layout_constraint'})
_MOST_MOVED = 4  # arguments of one function

HOST, DEVICE = core.MemorySpace.Host, core.MemorySpace.Device
_tried = threading.local()


def index(operand: Any, indices: Any) -> Any:
  """Returns a gather's indices, in the memory of what is indexed."""
  if {_space(operand), _space(indices)} == {HOST, DEVICE} and (
      _has_memory(operand)):
    return _moved(indices, operand)
  return indices


def retried(trace: Any, primitive: core.Primitive, tracers: Sequence[Any],
            params: dict[str, Any], source_info: Any) -> Any:
  """Stages a refused operation once more, its operands in one memory.

  Args:
    trace: the ``DynamicJaxprTrace`` that has just refused it.
    primitive: the operation.
    tracers: its operands, of that trace.
    params: its parameters.
    source_info: where it is in the program.

  Returns:
    The result, or None: the refusal isn't about memories, or stays. It names
    the operands then.
  """
  error = mixed_memories.current()
  if error is None:
    return None
  with core.set_current_trace(trace):
    moved = next(_ways(tracers, True), None)
  if moved is None:
    mixed_memories.name_operands(error, tracers)
    return None
  return trace.default_process_primitive(primitive, moved, params, source_info)


def inlined(infer: Callable[..., Any], fun: Callable[..., Any], options: Any,
            avals: Sequence[Any], args: Any, kwargs: Any) -> Any:
  """Infers the parameters of a `jit`, with operations of one memory each.

  Args:
    infer: the function that infers the parameters, which called this one.
    fun: the function to trace.
    options: those of its `jit`.
    avals: the types of the arguments.
    args: the arguments.
    kwargs: those by name.

  Returns:
    What `infer` returns, or None: the arguments are in one memory.
  """
  if not _are_mixed(avals):
    return None
  tried = _tried.__dict__.setdefault('functions', set())
  if (fun, avals) in tried:
    return None
  tried.add((fun, avals))
  try:
    return infer(fun, options, args, kwargs)
  except ValueError:
    error = mixed_memories.current()
    if error is None:
      raise
    operands = _arrays((args, tuple(kwargs.values())))
    is_operation = options.inline in releases.inlined_while_tracing() or (
        getattr(fun, '_apply_primitive', False))
    for moved in _ways(operands, is_operation):
      there = {id(x): y for x, y in zip(operands, moved)}
      try:
        return infer(fun, options, _replaced(args, there),
                     _replaced(kwargs, there))
      except ValueError:
        if mixed_memories.current() is None:
          raise
    if is_operation:
      mixed_memories.name_operands(error, operands)
    raise
  finally:
    tried.discard((fun, avals))


def fast_path(data: Any, args: Any, kwargs: Any, flat: Sequence[Any]) -> Any:
  """Returns what `jit` keeps for the next call; None if it moved anything."""
  if not any(_space(x) is HOST for x in flat if _is_array(x)):
    return data
  used = {id(x) for x in flat}
  return data if all(
      id(x) in used or _space(x) is HOST
      for x in _arrays((args, tuple(kwargs.values())))) else None


def filled(make: Callable[..., Any], shape: Any, sharding: Any, shard: Any,
           dtype: Any) -> Any:
  """Makes an array of equal shards in a memory that isn't the device's.

  Args:
    make: ``make_array_from_callback``.
    shape: the array's shape.
    sharding: the array's sharding.
    shard: each shard, in the device's memory.
    dtype: the array's dtype.

  Returns:
    The array.
  """
  there = sharding.with_memory_kind(shard.sharding.memory_kind)
  array = make(shape, there, lambda _: shard, dtype=dtype)
  return transfers.put(array, sharding)


def _ways(operands: Sequence[Any], is_operation: bool) -> Iterator[list[Any]]:
  """Yields the operands with what has no place of its own moved to the host.

  Args:
    operands: arrays, some in host memory.
    is_operation: all are operands of one operation, which is to be in one
      memory. Else they are arguments of a function, whose other uses aren't
      known: each that can be moved is, by itself, and then all; in a trace
      only, for outside each call would trace the function anew.
  """
  like = next((x for x in operands
               if _has_memory(x) and _space(x) is HOST), None)
  if like is None or not is_operation and not isinstance(
      like, pe.DynamicJaxprTracer):
    return
  loose = [i for i, x in enumerate(operands) if _has_memory(x) and
           _space(x) is DEVICE and _is_placeless(x)]
  if not is_operation and len(loose) > _MOST_MOVED:
    return
  ones = [] if is_operation or len(loose) == 1 else [{i} for i in loose]
  for chosen in [*ones, set(loose)]:
    moved = [_moved(x, like) if i in chosen else x
             for i, x in enumerate(operands)]
    if any(_space(moved[i]) is HOST for i in chosen):
      yield moved


def _moved(x: Any, like: Any) -> Any:
  """Moves an array to the memory of another one, and to its devices."""
  if isinstance(x, pe.DynamicJaxprTracer):
    return transfers.put(x, _space(like))
  sharding = getattr(mixed_memories.concrete(like), 'sharding', None)
  if sharding is None:
    return transfers.put(x, _space(like))
  kind = sharding.memory_kind
  if core.mem_kind_to_space(kind) is not _space(like):
    kind = core.mem_space_to_kind(_space(like))  # on the CPU, before 0.10.2
  if getattr(x, '_committed', False):
    return transfers.put(x, x.sharding.with_memory_kind(kind))
  if isinstance(sharding, NamedSharding):
    return transfers.put(x, NamedSharding(
        sharding.mesh, PartitionSpec(), memory_kind=kind))
  if len(sharding.device_set) == 1:
    return transfers.put(x, sharding.with_memory_kind(kind))
  return transfers.put(x, _space(like))


def _space(x: Any) -> Any:
  return getattr(core.typeof(x), 'memory_space', DEVICE)


def _is_array(x: Any) -> bool:
  return isinstance(x, (core.Tracer, np.ndarray)) or hasattr(x, '_committed')


def _has_memory(x: Any) -> bool:
  """True of an array; scalars go with what is in any memory."""
  return bool(getattr(core.typeof(x), 'ndim', 0))


def _are_mixed(avals: Sequence[Any]) -> bool:
  spaces = {a.memory_space for a in avals
            if type(a) is core.ShapedArray and a.shape}  # in the fewest steps
  return HOST in spaces and DEVICE in spaces


def _arrays(x: Any) -> list[Any]:
  """Returns the arrays among a function's arguments, and in lists of them."""
  if isinstance(x, (tuple, list)):
    return [y for item in x for y in _arrays(item)]
  return [x] if _is_array(x) else []


def _replaced(x: Any, there: dict[int, Any]) -> Any:
  """Returns arguments with some of the arrays replaced, by their identity."""
  if type(x) is dict:
    return {k: _replaced(v, there) for k, v in x.items()}
  if type(x) in (tuple, list):
    return type(x)(_replaced(item, there) for item in x)
  return there.get(id(x), x) if _is_array(x) else x


# From here on: which arrays have no place of their own.


def _is_placeless(x: Any) -> bool:
  """True of an array that nobody put where it is."""
  pending, seen = [x], set()
  while pending:
    x = pending.pop()
    if id(x) in seen or isinstance(x, core.Literal):
      continue
    seen.add(id(x))
    if not isinstance(x, core.Tracer):
      if getattr(x, '_committed', False):
        return False
      continue
    if not isinstance(x, pe.DynamicJaxprTracer):
      return False
    if x.parent is None:
      constant = x.get_referent()
      if constant is x and not isinstance(x.val, core.Literal):
        return False
      pending.append(x.val if constant is x else constant)
    elif not _makes_placeless(x.parent, {}):
      return False
    else:
      pending += [t for t in x.parent.in_tracers if _has_memory(t)]
  return True


def _makes_placeless(eqn: Any, known: dict[int, bool]) -> bool:
  """True if an equation's results have no place if its operands have none."""
  if eqn.effects or foreign.name_of(eqn.primitive) in _PLACING:
    return False
  operands = getattr(eqn, 'in_tracers', None) or eqn.invars
  if not all(isinstance(x.aval, core.ShapedArray) for x in operands):
    return False  # a ref, a token
  inner = list(core.jaxprs_in_params(eqn.params))
  if not inner:
    return True
  if anatomy.CALLS[eqn.primitive] != anatomy.JIT:
    return False
  for jaxpr in inner:
    jaxpr = getattr(jaxpr, 'jaxpr', jaxpr)
    if id(jaxpr) not in known:
      known[id(jaxpr)] = not jaxpr.constvars and all(
          _makes_placeless(e, known) for e in jaxpr.eqns)
    if not known[id(jaxpr)]:
      return False
  return not any(isinstance(s, sharding_lib.Sharding) for name in (
      'in_shardings', 'out_shardings') for s in eqn.params.get(name, ()))
