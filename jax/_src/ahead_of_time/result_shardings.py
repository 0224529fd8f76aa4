# SPDX-License-Identifier: Apache-2.0
"""The shardings that a traced function's results have (jax#19656).

`jax.eval_shape` and the stages of ahead of time compilation say what results
will be. They know the `out_shardings` of the function itself; here is read off
its jaxpr what the function does to its results last:
`with_sharding_constraint`, a call of another `jit` with `out_shardings`, or a
`shard_map` over all axes of its mesh, also within calls, `checkpoint` and
custom derivatives. A result that is an argument has the argument's: that of
`in_shardings`, or else that of the array, or `ShapeDtypeStruct`, if it was
placed by somebody (`jax.Array.committed`).

The compiler spells a shard_map's result, and an argument that `in_shardings`
place, without axes of size 1 and without trailing Nones, on every release; so
does this. An array that is handed through keeps its spelling.

GSPMD, the partitioner before 0.7, merges a layout with that of its operand
along axes that it leaves out: `P()` of what was split over 'x' is `P('x')`.
There it is said if no axis is left out, or an operation computes the operand.

Nothing is propagated: of an operation's result the compiler decides the layout,
of a `device_put`'s too (it returns another), of what a shard_map leaves to
automatic axes. An argument that nobody placed goes where the others are, or
stays: of it nothing is said. Nor is anything said where a dimension is left
open, where there are no elements (the compiler doesn't split what is empty), of
a memory that the compiler may not give, or where axes are Explicit or Manual:
along those the type has the sharding.

Cost: one look at each equation of the jaxprs that lead to the results.
"""

from __future__ import annotations

from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src import sharding as sharding_lib
from jax._src.mend import anatomy
from jax._src.mend import foreign
from jax._src.mend import jitted
from jax._src.mend import manual_maps
from jax._src.mend import releases
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec
from jax._src.sharding_impls import SingleDeviceSharding
from jax._src.sharding_impls import UnspecifiedValue

# The calls whose results are their jaxprs', as XLA compiles them.
_CALLS = anatomy.named(
    anatomy.CALLS, anatomy.JIT, anatomy.PLAIN, anatomy.REMAT, anatomy.JVP,
    anatomy.VJP)
_LAST = {'sharding_constraint', 'shard_map', *_CALLS}
# What XLA may take away before it lays out anything.
_NO_OPERATIONS = {'copy', 'convert_element_type', 'reshape', 'squeeze',
                  'transpose', 'broadcast_in_dim'}


def fill(shardings: Sequence[Any], traced: Any) -> list[Any]:
  """Returns the shardings of results, as far as a traced function says them.

  Args:
    shardings: for each result its sharding, or None or unspecified.
    traced: the ``Traced``.

  Returns:
    The list, with shardings where there were none and one is known.
  """
  is_open = [s is None or isinstance(s, UnspecifiedValue) for s in shardings]
  if not any(is_open):
    return list(shardings)
  found = of_results(traced)
  return [f if o and f is not None else s
          for s, o, f in zip(shardings, is_open, found)]


def of_results(traced: Any) -> list[Any]:
  """Returns for each result of a ``Traced`` its sharding, or None."""
  jaxpr = getattr(traced.jaxpr, 'jaxpr', traced.jaxpr)
  known = [None if 0 in getattr(v.aval, 'shape', ()) else k
           for k, v in zip(_followed(jaxpr), jaxpr.outvars)]
  if any(isinstance(s, core.Var) for s in known):
    arguments = dict(zip(jaxpr.invars, _of_arguments(traced)))
    known = [arguments.get(s) if isinstance(s, core.Var) else s for s in known]
  return known


def _of_arguments(traced: Any) -> list[Any]:
  """Returns for each argument the sharding that it comes out with, or None."""
  return [_own_sharding(arg) if isinstance(s, UnspecifiedValue)
          else _as_compiled(s)
          for arg, s in zip(jitted.arguments(traced),
                            jitted.parameters(traced).get('in_shardings', ()))]


def _own_sharding(arg: Any) -> sharding_lib.Sharding | None:
  """Returns the sharding by which somebody placed an argument, or None."""
  if isinstance(arg, core.Tracer):
    return None
  placed = getattr(arg, 'committed', getattr(arg, '_committed', True))
  found = _complete_sharding(getattr(arg, 'sharding', None)) if placed else None
  known = isinstance(found, (NamedSharding, SingleDeviceSharding))
  return found if known else None


def _followed(jaxpr: core.Jaxpr) -> list[Any]:
  """Returns for each result its sharding, None, or the argument that it is."""
  made_by = {v: (eqn, i) for eqn in jaxpr.eqns
             if foreign.name_of(eqn.primitive) in _LAST
             for i, v in enumerate(eqn.outvars)}
  arguments: set = set(jaxpr.invars)
  inner: dict = {}
  found = []
  for v in jaxpr.outvars:
    known: Any = v if isinstance(v, core.Var) else None
    while isinstance(known, core.Var) and known in made_by:
      # A call may hand on what was made before it.
      eqn, i = made_by[known]
      known = _made(eqn, i, inner, jaxpr)
    if isinstance(known, core.Var) and known not in arguments:
      known = None
    found.append(known)
  return found


def _made(eqn: core.JaxprEqn, i: int, inner: dict[int, list[Any]],
          jaxpr: core.Jaxpr) -> Any:
  """Returns the i-th result's sharding, None, or the operand that it is."""
  name = foreign.name_of(eqn.primitive)
  if not _is_automatic(eqn.outvars[i].aval):
    return None
  if name == 'sharding_constraint':
    return _unmerged(eqn.params['sharding'], jaxpr, eqn.invars[0])
  if name == 'shard_map':
    return _mapped_sharding(eqn, i)
  called = eqn.params[anatomy.callee(eqn.params)]
  called = getattr(called, 'jaxpr', called)
  given = eqn.params.get('out_shardings')
  if given is not None and not isinstance(given[i], UnspecifiedValue):
    return _unmerged(given[i], called, called.outvars[i])
  if len(called.invars) != len(eqn.invars):
    return None
  if id(eqn) not in inner:
    inner[id(eqn)] = _followed(called)
  known = inner[id(eqn)][i]
  if isinstance(known, core.Var):
    n = called.invars.index(known)
    taken = eqn.params.get('in_shardings')
    if taken is not None and not isinstance(taken[n], UnspecifiedValue):
      return _unmerged(taken[n], called, known)
    known = eqn.invars[n]
    return known if isinstance(known, core.Var) else None
  return known


def _unmerged(
    sharding: Any, jaxpr: core.Jaxpr, operand: Any
) -> sharding_lib.Sharding | None:
  """Returns the sharding that an operand of a jaxpr gets, or None."""
  found = _complete_sharding(sharding)
  if found is not None and not _is_in_usual_memory(found):
    return None  # on CPUs the result is in the usual memory after all
  option = releases.shardy_option()
  is_shardy = option is not None and option.value
  if is_shardy or not isinstance(found, NamedSharding):
    return found
  named = {n for names in found.spec for n in (
      names if isinstance(names, tuple) else (names,))}
  if all(size == 1 or n in named for n, size in found.mesh.shape.items()):
    return found
  maker = next((e for e in jaxpr.eqns if operand in e.outvars), None)
  computes = maker is not None and not (
      foreign.name_of(maker.primitive) in _LAST | _NO_OPERATIONS or any(
          isinstance(v, core.Literal) and getattr(v.aval, 'shape', ()) == ()
          and v.val in (0, 1) for v in maker.invars))
  return found if computes else None


def _is_in_usual_memory(sharding: sharding_lib.Sharding) -> bool:
  """True if no other memory is asked for; an abstract mesh's isn't known."""
  kind = sharding.memory_kind
  if kind is None or isinstance(getattr(sharding, 'mesh', None),
                                mesh_lib.AbstractMesh):
    return True
  device: Any = next(iter(sharding.device_set))
  return kind == device.default_memory().kind


def _mapped_sharding(
    eqn: core.JaxprEqn, i: int) -> sharding_lib.Sharding | None:
  """Returns the sharding of a shard_map's i-th result, or None."""
  mapped = manual_maps.of(eqn)
  spec = mapped.out_specs[i]
  if (mapped.manual != frozenset(mapped.mesh.axis_names) or
      manual_maps.partly_reduced(spec)):
    return None
  return _as_compiled(NamedSharding(mapped.mesh, spec))


def _as_compiled(sharding: Any) -> sharding_lib.Sharding | None:
  """Returns a sharding as the compiler spells it, or None."""
  if not isinstance(sharding, sharding_lib.Sharding):
    return None
  # Results by the hundred have one.
  return _spelled(sharding, mesh_lib.get_concrete_mesh())


@functools.lru_cache(maxsize=512)
def _spelled(sharding: sharding_lib.Sharding, concrete: mesh_lib.Mesh | None
             ) -> sharding_lib.Sharding | None:
  del concrete  # It is part of the key.
  found = _complete_sharding(sharding)
  if not isinstance(found, NamedSharding):
    return found
  if not isinstance(found.mesh, mesh_lib.Mesh):
    return None  # Its devices aren't known.
  dims: list[Any] = []
  for names in getattr(found.spec, 'partitions', found.spec):
    names = names if isinstance(names, tuple) else (names,)
    kept = tuple(n for n in names
                 if n is not None and found.mesh.shape[n] > 1)
    dims.append(kept[0] if len(kept) == 1 else kept or None)
  while dims and dims[-1] is None:
    dims.pop()
  return NamedSharding(found.mesh, PartitionSpec(*dims),
                       memory_kind=found.memory_kind)


def _is_automatic(aval: Any) -> bool:
  """True if the type leaves the layout to the compiler."""
  mesh = getattr(getattr(aval, 'sharding', None), 'mesh', None)
  return mesh is None or mesh.empty or _axes_are_automatic(mesh)


def _axes_are_automatic(mesh: Any) -> bool:
  return all(getattr(t, 'name', '') == 'Auto' for t in mesh.axis_types)


def _complete_sharding(sharding: Any) -> sharding_lib.Sharding | None:
  """Returns a sharding that says all of a layout, or None."""
  if not isinstance(sharding, sharding_lib.Sharding):
    return None
  if not isinstance(sharding, NamedSharding):
    return sharding
  if (PartitionSpec.UNCONSTRAINED in sharding.spec or
      not _axes_are_automatic(sharding.mesh)):
    return None
  if isinstance(sharding.mesh, mesh_lib.AbstractMesh):
    concrete = mesh_lib.get_concrete_mesh()
    if concrete is not None and concrete.abstract_mesh == sharding.mesh:
      return NamedSharding(concrete, sharding.spec)
  return sharding


# From here on: the stages.


def attach(lowered: Any, traced: Any) -> Any:
  """Gives `lowered` the shardings of results that its ``Traced`` says.

  Args:
    lowered: a new ``Lowered``.
    traced: its ``Traced``.

  Returns:
    `lowered`.
  """
  traced = getattr(traced, 'lojax', traced)
  lowered._result_shardings = of_results(traced)
  return lowered


def of_lowered(shardings: Sequence[Any], lowered: Any) -> list[Any]:
  """Returns `shardings`, filled with what was attached to `lowered`."""
  found = getattr(lowered, '_result_shardings', None)
  if found is None or len(found) != len(shardings):
    return list(shardings)
  return [f if f is not None and isinstance(s, UnspecifiedValue) else s
          for s, f in zip(shardings, found)]


def traced_info(infos: Any, traced: Any) -> Any:
  """Fills in the shardings in `out_info` of a ``Traced``, before JAX 0.7."""
  leaves, tree = traced._out_tree.flatten_up_to(infos), traced._out_tree
  given = jitted.parameters(traced).get('out_shardings')
  known = fill([None] * len(leaves) if given is None else given, traced)
  return tree.unflatten([
      dataclasses.replace(
          info, sharding=None if isinstance(s, UnspecifiedValue) else s)
      for info, s in zip(leaves, known)])
