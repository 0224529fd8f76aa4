# SPDX-License-Identifier: Apache-2.0
"""The device of an array that is traced, where no device is known (jax#26000).

A program is traced once for arguments on any device, so ``x.device`` is then no
device. It isn't missing either: code for the Array API asks for it, and code
for JAX that guards against a missing one (``getattr(x, 'device', None)``) would
go on with what it finds. So the answer is a token that does both:

* As a place it is none. What is made with it goes where the program runs;
  :mod:`~jax._src.array_api.argument` puts ``None`` for it.
* As an object it is a device: ``isinstance(token, jax.Device)`` holds, and its
  attributes, its ``str``, its hash and its equality are those of the device
  where the program would run if its arguments asked for nothing. This is a
  device of the mesh that is set, or the one of ``jax.default_device``, or the
  first one. Two tokens of one program are so equal to each other and to the
  device of an uncommitted array, and a set or a dictionary can't tell.

The runtime can't take a token, and crashes on one. Where a device becomes part
of something that lasts (a mesh, ``jax.default_device``), :func:`known` and
:func:`all_known` put that device for it. A ``SingleDeviceSharding`` is made by
the runtime, and keeps the token: it counts as one where it is used.

Nothing is looked up before somebody asks, as that starts the backends, which
``jax.distributed.initialize`` wouldn't stand. Limits: a program that runs
elsewhere, since its arguments are committed, is told of the wrong device; it is
not traced again for another. Cost: a look at two settings.
"""
from __future__ import annotations

from typing import Any
import weakref

from jax._src.lib import xla_client as xc

_tokens: weakref.WeakValueDictionary[Any, UnknownDevice] = (
    weakref.WeakValueDictionary())


class _Memory(str):
  """A memory of a token: the runtime takes those of a foreign device by name.

  So a ``SingleDeviceSharding`` on a token can name one.
  """

  _memory: Any

  def __new__(cls, memory: Any) -> _Memory:
    self = super().__new__(cls, memory.kind)
    self._memory = memory
    return self

  def __getattr__(self, name: str) -> Any:
    return getattr(self._memory, name)

  def __repr__(self) -> str:
    return repr(self._memory)


class UnknownDevice:
  """Stands for the device where a program runs.

  Tokens are made by :func:`where_it_runs`, one for each place.
  """

  __slots__ = ('_place', '__weakref__')

  def __init__(self, place: xc.Device | str | None):
    """
    Args:
      place: the device, the name of its platform, or None for the default.
    """
    object.__setattr__(self, '_place', place)

  # So isinstance says that a token is a device. A subclass of the runtime's
  # type wouldn't do: it would have to be a device to the runtime as well.
  __class__ = property(lambda self: xc.Device)  # pyrefly: ignore

  def __getattr__(self, name: str) -> Any:
    if name.startswith('__'):  # Protocols, NumPy's for one, are no device's.
      raise AttributeError(name)
    return getattr(known(self), name)

  def addressable_memories(self) -> list[Any]:
    return [*map(_Memory, known(self).addressable_memories())]

  def __setattr__(self, name: str, value: Any) -> None:
    setattr(known(self), name, value)

  def __dir__(self) -> list[str]:
    return dir(known(self))

  def __eq__(self, other: Any) -> bool:
    return self is other or known(self) == known(other)

  def __hash__(self) -> int:
    return hash(known(self))

  def __repr__(self) -> str:
    return '<device: where the program runs>'

  def __str__(self) -> str:
    return str(known(self))

  def __copy__(self) -> UnknownDevice:
    return self

  def __deepcopy__(self, memo: Any) -> UnknownDevice:
    return self

  def __reduce__(self) -> Any:
    if isinstance(self._place, xc.Device):
      return _token_of, (self._place.platform, self._place.id)
    return _token, (self._place,)


def where_it_runs() -> UnknownDevice:
  """The token of the program that is being traced."""
  # pylint: disable=g-import-not-at-top
  from jax._src import config  # which imports this module
  from jax._src import mesh as mesh_lib
  # pylint: enable=g-import-not-at-top
  place = config.default_device.value
  in_use = mesh_lib.get_concrete_mesh()
  if isinstance(in_use, mesh_lib.Mesh) and in_use.size:
    place = next(iter(in_use.local_devices), in_use.devices.flat[0])
  return _token(place)


def _token(place: xc.Device | str | None) -> UnknownDevice:
  token = _tokens.get(place)
  if token is None:
    token = _tokens.setdefault(place, UnknownDevice(place))
  return token


def _token_of(platform: str, i: int) -> UnknownDevice:
  """The token of a device, for pickle."""
  from jax._src import xla_bridge as xb  # pylint: disable=g-import-not-at-top
  return _token(next(d for d in xb.devices(platform) if d.id == i))


def known(device: Any) -> Any:
  """The device that a token answers for; anything else as it is."""
  if type(device) is not UnknownDevice:
    return device
  place = device._place
  if place is None or isinstance(place, str):
    # pylint: disable-next=g-import-not-at-top
    from jax._src import xla_bridge as xb
    return xb.local_devices(backend=place)[0]
  return place


def all_known(devices: Any) -> Any:
  """Devices in an array or a sequence, without tokens.

  Args:
    devices: an array, a sequence or anything else.

  Returns:
    An array or a list with what :func:`known` gives; `devices` itself if it
    holds no token.
  """
  import numpy as np  # pylint: disable=g-import-not-at-top
  flat = (devices.ravel() if isinstance(devices, np.ndarray) else
          devices if isinstance(devices, (list, tuple)) else ())
  if not any(type(d) is UnknownDevice for d in flat):
    return devices
  if isinstance(devices, np.ndarray):
    return np.array([*map(known, flat)], object).reshape(devices.shape)
  return [*map(known, flat)]


def unless_unknown(sharding: Any) -> Any:
  """A sharding without a token.

  Args:
    sharding: a sharding, or anything else.

  Returns:
    Itself if it is on no token; None if it says no more than that.
  """
  if not isinstance(sharding, xc.SingleDeviceSharding):
    return sharding
  device = known(sharding._device)
  if device is sharding._device:
    return sharding
  if sharding == xc.SingleDeviceSharding(device):
    return None
  return xc.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)


def known_sharding(sharding: Any) -> Any:
  """The sharding on the device that a token answers for, or as it is."""
  if (isinstance(sharding, xc.SingleDeviceSharding) and
      type(sharding._device) is UnknownDevice):
    return xc.SingleDeviceSharding(
        known(sharding._device), memory_kind=sharding.memory_kind)
  return sharding
