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

Limits: under a transformation the placement of concrete operands is left alone,
because it is the enclosing ``jit`` that decides. Cost: where an array moves,
one transfer of it; elsewhere, a comparison of two short tuples, and that only
if ``device`` was given.
"""
from __future__ import annotations

from typing import Any

from jax._src import basearray
from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src.lib import xla_client as xc
from jax._src.named_sharding import NamedSharding
from jax._src.sharding import Sharding


def must_put(device: xc.Device | Sharding | None, *operands: Any) -> bool:
  """Whether a sharding constraint cannot take `operands` to `device`.

  Args:
    device: what the caller gave as ``device``.
    *operands: the arrays that the result is computed from, or other values.

  Returns:
    True if the result must be computed first and then put on `device`.
  """
  if isinstance(device, Sharding) and _splits_explicit_axis(device):
    # With a mesh in the context, newer JAX takes this as a resharding.
    return mesh_lib.get_abstract_mesh().empty
  return any(_stands_elsewhere(x, device) for x in operands)


def put(out: Any, device: xc.Device | Sharding) -> Any:
  """Puts an array, or the first of a tuple, on `device`."""
  from jax._src import api  # not on top: api imports what imports this module
  if isinstance(out, tuple):
    return (api.device_put(out[0], device), *out[1:])
  return api.device_put(out, device)


def spans_devices(device: xc.Device | Sharding | None) -> bool:
  """Whether `device` stands for several devices."""
  return (isinstance(device, Sharding) and device._is_concrete
          and len(device.device_set) > 1)


def must_put_spread(device: xc.Device | Sharding | None) -> bool:
  """Whether broadcasting an array cannot spread it over `device`.

  Broadcasting takes an output sharding only on Explicit axes, and only with
  their mesh in the context.

  Args:
    device: what the caller gave as ``device``.

  Returns:
    True if the result must be computed first and then put on `device`.
  """
  return spans_devices(device) and not (
      isinstance(device, NamedSharding) and device.mesh.are_all_axes_explicit
      and not mesh_lib.get_abstract_mesh().empty)


def check_no_transfer(function: str, x: Any, copy: bool | None,
                      device: xc.Device | Sharding | None) -> None:
  """Refuses ``copy=False`` for an array that `device` is not home to.

  Args:
    function: the name of the public function.
    x: the object that becomes an array.
    copy: what the caller gave as ``copy``.
    device: what the caller gave as ``device``.

  Raises:
    ValueError: if `x` is committed to other devices and may not be copied.
  """
  if copy is False and _stands_elsewhere(x, device):
    raise ValueError(
        f"{function}: an array on {x.device} can only reach {device} by a copy,"
        " and copy=False forbids one. Leave copy out, or pass copy=None.")


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
        "jax.numpy.from_dlpack: a buffer can only reach the"
        f" {len(device.device_set)} devices of {device} by a copy, and"
        " copy=False forbids one. Leave copy out, or pass copy=None.")
  return put(dlpack.from_dlpack(x, copy=copy), device)


def _stands_elsewhere(x: Any, device: xc.Device | Sharding | None) -> bool:
  if isinstance(device, xc.Device):
    target = (device,)
  elif isinstance(device, Sharding) and device._is_concrete:
    target = tuple(device._device_assignment)
  else:
    return False
  if not isinstance(x, basearray.Array) or isinstance(x, core.Tracer):
    return False
  return (x.committed and core.trace_state_clean()
          and tuple(x.sharding._device_assignment) != target)


def _splits_explicit_axis(sharding: Sharding) -> bool:
  if not isinstance(sharding, NamedSharding) or not sharding._is_concrete:
    return False
  types = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types))
  names = [name for entry in sharding.spec if entry is not None
           for name in (entry if isinstance(entry, tuple) else (entry,))]
  return any(types.get(n) == mesh_lib.AxisType.Explicit for n in names)
