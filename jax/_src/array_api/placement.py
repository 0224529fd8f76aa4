# SPDX-License-Identifier: Apache-2.0
"""Creation functions that put an array where ``device=`` says (jax#27606).

Most of jax.numpy honours ``device=`` with a sharding constraint, and a
constraint cannot do everything that ``device=`` may ask for. It refuses an
operand that is committed to other devices, so ``asarray(x, device=d)`` works
only for an ``x`` that is already on ``d``; and it refuses the axes of a mesh
that are Explicit, which a sharding read off an array may well have. A function
that makes scalars on the way, such as ``fft.fftfreq``, cannot apply to them a
sharding that splits a dimension.

The way out is the same each time: compute without a device and hand the result
to :func:`jax.device_put`, which moves between any two placements. The functions
here say when, and each caller goes on as before in every other case, so that
what worked is traced and compiled as it was.

``grad`` and ``vmap`` that run operation by operation count as no
transformation. Limits: while a program is traced the placement of its concrete
operands is left alone, because it is the enclosing ``jit`` that decides. Cost:
where an array moves or is committed, one call of device_put; elsewhere, a
comparison of two short tuples, and that only if ``device`` was given.
"""
from __future__ import annotations

from typing import Any

from jax._src import basearray
from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src.interpreters import ad
from jax._src.interpreters import batching
from jax._src.interpreters import partial_eval as pe
from jax._src.lib import xla_client as xc
from jax._src.mend import axis_types
from jax._src.mend import pages
from jax._src.named_sharding import NamedSharding
from jax._src.sharding import Sharding


def must_put(device: xc.Device | Sharding | None, *operands: Any) -> bool:
  """True if a sharding constraint cannot take `operands` to `device`.

  Args:
    device: what the caller gave as ``device``.
    *operands: the arrays that the result is computed from, or other values.

  Returns:
    True if the result must be computed first and then put on `device`.
  """
  if isinstance(device, Sharding) and _splits_explicit_axis(device):
    # With a mesh in the context, newer JAX takes this as a resharding.
    return mesh_lib.get_abstract_mesh().empty
  return any(_must_be_put(x, device) for x in operands)


def put(out: Any, device: xc.Device | Sharding) -> Any:
  """Puts an array, or the first of a tuple, on `device`."""
  from jax._src import api  # not on top: api imports what imports this module
  if isinstance(out, tuple):
    return (api.device_put(out[0], device), *out[1:])
  return api.device_put(out, device)


def spans_devices(device: xc.Device | Sharding | None) -> bool:
  """True if `device` stands for several devices."""
  return (isinstance(device, Sharding) and device._is_concrete
          and len(device.device_set) > 1)


def must_put_spread(device: xc.Device | Sharding | None, value: Any) -> bool:
  """True if broadcasting an array cannot spread it over `device`.

  Broadcasting takes an output sharding only on Explicit axes, and only with
  their mesh in the context; or one that splits nothing, which places nothing.

  Args:
    device: what the caller gave as ``device``.
    value: what is broadcast.

  Returns:
    True if the result must be computed first and then put on `device`. In a
    program, or its derivative, what splits nothing is left to ``jit``, as for
    an array of zeros: a device_put there ties the program to `device`.
  """
  if not spans_devices(device):
    return False
  if not isinstance(device, NamedSharding):
    return True
  if device.mesh.are_all_axes_explicit:
    # device_put can't say where an element of a batch goes, and its transpose
    # loses the type of a cotangent.
    array, mapped = concrete(value)
    derived = isinstance(value, (ad.JVPTracer, ad.LinearizeTracer))
    return (mesh_lib.get_abstract_mesh().empty and not mapped and
            not (derived and array is None))
  return core.trace_state_clean() or any(device.spec)


def must_put_range(device: xc.Device | Sharding | None, *ends: Any) -> bool:
  """True if `linspace` must compute first and then put on `device`.

  Where nothing is traced this refuses, as the other functions do, a number of
  samples that `device` does not divide; a constraint replicates them.

  Args:
    device: what the caller gave as ``device``.
    *ends: the first and the last sample.

  Returns:
    True if the result must be computed first and then put on `device`.
  """
  return must_put(device, *ends) or (
      spans_devices(device) and core.trace_state_clean())


def check_rank(shape: tuple[int, ...], device: Any) -> None:
  """Refuses to lay out an array along dimensions that it does not have.

  Args:
    shape: the shape of the array that is made.
    device: the sharding that it is to have.

  Raises:
    ValueError: if `device` splits more dimensions than there are.
  """
  if isinstance(device, NamedSharding) and len(device.spec) > len(shape):
    raise ValueError(
        'jax.numpy.zeros, ones, full, empty and their _like forms: expected a'
        f' device that can lay out an array of shape {tuple(shape)}, got'
        f' {device}, for at least {len(device.spec)} dimensions. To put such'
        ' an array on these devices, replicated, pass'
        ' jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec()).' +
        pages.see('array_api.md#arrays-over-several-devices'))


def check_no_transfer(function: str, x: Any, copy: bool | None,
                      device: xc.Device | Sharding | None) -> None:
  """Refuses ``copy=False`` for an array that `device` is not home to.

  Args:
    function: the name of the public function.
    x: the object that becomes an array.
    copy: what the caller gave as ``copy``.
    device: what the caller gave as ``device``.

  Raises:
    ValueError: if `x` is elsewhere, or laid out differently, and may not be
      copied.
  """
  if copy is not False or device is None:
    return
  value, _ = concrete(x)
  if value is None or not runs_now() or _lies_as(value, device):
    return
  raise ValueError(
      f'{function}: an array on {value.device} can only reach {device} by a'
      ' copy, and copy=False forbids one. Leave copy out, or pass copy=None.' +
      pages.see('array_api.md#moving'))


def from_dlpack(x: Any, device: Sharding, copy: bool | None) -> Any:
  """Imports `x` and spreads it over the devices of `device`.

  Args:
    x: an object with ``__dlpack__`` and ``__dlpack_device__``.
    device: a sharding over several devices.
    copy: as in :func:`jax.numpy.from_dlpack`.

  Returns:
    An array with the sharding `device`.

  Raises:
    ValueError: if `copy` is False: no DLPack buffer spans devices.
  """
  from jax._src import dlpack
  if copy is False:
    raise ValueError(
        'jax.numpy.from_dlpack: a buffer can only reach the'
        f' {len(device.device_set)} devices of {device} by a copy, and'
        ' copy=False forbids one. Leave copy out, or pass copy=None.' +
        pages.see('array_api.md#sharing-memory-from_dlpack'))
  return put(dlpack.from_dlpack(x, copy=copy), device)


def sharding_for_vmap(axis_data: Any, sharding: Sharding, axis: int) -> Any:
  """The sharding of a batch whose elements are to have `sharding`.

  Args:
    axis_data: the axis that is mapped over.
    sharding: that of an element.
    axis: where the batch has its elements.

  Returns:
    A sharding for the batch. One device is a place for it as for an element;
    upstream asks for the mesh that a single device doesn't have.
  """
  if isinstance(sharding, NamedSharding) or spans_devices(sharding):
    return batching.get_sharding_for_vmap(axis_data, sharding, axis)
  return sharding


def concrete(x: Any) -> tuple[Any, bool]:
  """Looks beneath the transformations that run operation by operation.

  Args:
    x: any value.

  Returns:
    The array that `x` is, or that it is traced for, ``None`` if there is none
    yet; and whether `x` is only an element of it.
  """
  mapped = False
  while isinstance(x, core.Tracer):
    if isinstance(x, batching.BatchTracer):
      mapped = mapped or x.batch_dim is not None
      x = x.val
    elif isinstance(x, (ad.JVPTracer, ad.LinearizeTracer)):
      x = x.primal
    else:
      return None, mapped
  return (x if isinstance(x, basearray.Array) else None), mapped


def runs_now() -> bool:
  """True if operations are carried out, rather than put into a program."""
  if core.trace_state_clean():
    return True
  trace = core.trace_ctx.trace
  while isinstance(trace, (ad.JVPTrace, ad.LinearizeTrace,
                           batching.BatchTrace, pe.JaxprTrace)):
    trace = trace.parent_trace
  return isinstance(trace, core.EvalTrace)


def _must_be_put(x: Any, device: xc.Device | Sharding | None) -> bool:
  value, _ = concrete(x)
  target = _assignment(device)
  if value is None or target is None or not runs_now():
    return False
  if tuple(value.sharding._device_assignment) != target:
    # A constraint moves what is uncommitted, and can say where an element of a
    # batch goes, which device_put can't.
    return value.committed or value is x
  return value is x and not value.committed


def _assignment(device: xc.Device | Sharding | None) -> tuple | None:
  if isinstance(device, xc.Device):
    return (device,)
  if isinstance(device, Sharding) and device._is_concrete:
    return tuple(device._device_assignment)
  return None


def _lies_as(x: basearray.Array, device: xc.Device | Sharding) -> bool:
  target = _assignment(device)
  if target is None:
    return True
  if tuple(x.sharding._device_assignment) != target:
    return False
  return len(target) == 1 or x.sharding.is_equivalent_to(device, x.ndim)


def _splits_explicit_axis(sharding: Sharding) -> bool:
  if not isinstance(sharding, NamedSharding) or not sharding._is_concrete:
    return False
  names = [name for entry in sharding.spec if entry is not None
           for name in (entry if isinstance(entry, tuple) else (entry,))]
  explicit = axis_types.names_of(sharding.mesh, axis_types.AxisType.Explicit)
  return any(n in explicit for n in names)
