# SPDX-License-Identifier: Apache-2.0
"""Refs in a shard_map that isn't under jit.

Without ``jit`` the operations of a ``shard_map`` are executed one by one, each
on all devices, and JAX has no form of a ref for that: one that was made inside,
passed or captured met an AssertionError, or a refusal as if it was returned
(jax#36000). Here the first operation that has a ref ends that execution, and
the whole is evaluated through ``jit``.

So the function runs twice, as one that is traced again does; if a callback was
called before, which can't be undone, the program is refused. The jitted
function is not kept, as what it captures can be another ref the next time: each
call compiles. ``jax.jit`` around the ``shard_map`` compiles once.

A ref on other devices than the mesh's that is passed is moved there and back,
as an array is moved; one that is captured is refused.

Under ``jit`` a captured ref has no spec since 0.9.2 (an AttributeError); it has
that of its content here.

Cost: without ``jit``, a test of each operation's operands; under it a frame.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import threading
from typing import Any

from jax._src import core
from jax._src.mend import jaxprs
from jax._src.mend import pages
from jax._src.mend import releases
from jax._src.mend import traces
from jax._src import mesh as mesh_lib
from jax._src.named_sharding import NamedSharding
from jax._src import tree_util

_MAKE_REFS = frozenset(['new_ref', 'array_ref', 'mutable_array', 'empty_ref'])
_CALLBACKS = frozenset(['io_callback', 'debug_callback', 'debug_print'])


class _MetRef(BaseException):
  """An operation has a ref; no ``except Exception`` of a program's ends it.

  Attributes:
    moves: of passed refs on other devices, each with a sharding on the mesh.
  """

  def __init__(self, moves: Sequence[tuple[Any, NamedSharding]] = ()):
    super().__init__()
    self.moves = moves


class _Executed(threading.local):
  callback = False  # whether one was called in the current shard_map


_executed = _Executed()


def through_jit(mapped: Callable[..., Any]) -> Callable[..., Any]:
  """Evaluates a mapped function through jit if it comes to a ref without.

  Args:
    mapped: what ``jax.shard_map`` gives.

  Returns:
    The same, for refs that it makes, is given or captures.

  Raises:
    NotImplementedError: a callback was called before it came to a ref.
  """
  @functools.wraps(mapped)
  def run(*args, **kwargs):
    before, _executed.callback = _executed.callback, False
    try:
      return mapped(*args, **kwargs)
    except _MetRef as e:
      if _executed.callback:
        raise NotImplementedError(
            'jax.shard_map outside of jax.jit calls a callback (such as '
            'jax.debug.print or io_callback) before it uses a jax.Ref. '
            'Expected: the ref first, or jax.jit; got: a callback that would '
            'be called twice. Write jax.jit(jax.shard_map(...)).' +
            pages.see('varying.md#refs')) from None
      moves = e.moves
    finally:
      _executed.callback |= before
    return _jitted(mapped, moves, args, kwargs)
  return run


def _jitted(mapped, moves, args, kwargs):
  """Calls the mapped function under jit; refs are moved there and back."""
  from jax._src import api  # it imports what imports this
  put = {id(ref): releases.make_ref()(api.device_put(ref[...], to))
         for ref, to in moves}
  args, kwargs = tree_util.tree_map(lambda x: put.get(id(x), x), (args, kwargs))
  out = api.jit(lambda args, kwargs: mapped(*args, **kwargs))(args, kwargs)
  for ref, _ in moves:
    ref[...] = api.device_put(put[id(ref)][...], ref.sharding)
  return out


def at_operation(mesh, prim: core.Primitive, operands, params) -> None:
  """Ends the execution operation by operation where one has a ref.

  Args:
    mesh: the mesh of the shard_map.
    prim: the operation's primitive.
    operands: what it is given.
    params: its parameters.

  Raises:
    ValueError: a captured ref isn't on the mesh's devices.
  """
  refs = list(filter(_is_ref, operands))
  if refs or prim.name in _MAKE_REFS:
    for ref in refs:
      if not _is_on(ref, mesh):
        raise ValueError(
            'jax.shard_map outside of jax.jit captures a jax.Ref that is not '
            f'on the devices of its mesh. Expected: one on {mesh}; got: one '
            f'on {ref.sharding}. Make it of jax.device_put(x, '
            'NamedSharding(mesh, P())), or pass it as an argument.' +
            pages.see('varying.md#refs'))
    raise _MetRef()
  if prim.name in _CALLBACKS or any(
      x.effects for x in params.values() if type(x) in jaxprs.CLASSES):
    _executed.callback = True


def at_arguments(mesh, in_specs, args) -> None:
  """Ends the execution operation by operation where an argument is a ref."""
  if not any(map(_is_ref, args)):
    return
  if not isinstance(mesh, mesh_lib.Mesh):
    mesh = mesh_lib.get_concrete_mesh()
  known = isinstance(mesh, mesh_lib.Mesh) and not mesh.empty
  raise _MetRef([(x, NamedSharding(mesh, spec))
                 for x, spec in zip(args, in_specs)
                 if known and _is_ref(x) and not _is_on(x, mesh)])


def of_content(spec_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
  """Gives a captured ref the spec of its content.

  Args:
    spec_of: the spec of a captured value's type.
  """
  @functools.wraps(spec_of)
  def of(aval):
    return spec_of(getattr(aval, 'inner_aval', aval))
  return of


def _is_ref(x: Any) -> bool:
  # No tracer of an execution operation by operation holds a ref.
  return not isinstance(x, core.Tracer) and traces.is_ref(x)


def _is_on(ref, mesh) -> bool:
  return ref.sharding.device_set == set(mesh.devices.flat)
