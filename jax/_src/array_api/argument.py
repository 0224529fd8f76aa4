# SPDX-License-Identifier: Apache-2.0
"""The values of a ``device=`` argument, in one place (jax#26000, jax#27606).

A device is ``None``, a :class:`jax.Device` or a :class:`jax.sharding.Sharding`,
and, as a fourth, what ``x.device`` is where the device of ``x`` isn't known
while a program is traced: a token of
:mod:`~jax._src.array_api.unknown_device`. It places like ``None``: what is made
with it goes where the program that makes it runs. So does what is made with a
``SingleDeviceSharding`` on it, in the memory that this names.

Each function with a ``device`` argument hands it to :func:`of` first, so that
the functions agree on what they take, and what they don't take is refused with
the function's name. What ``jax.device_put`` knows beyond devices, a layout for
one, passes through: some of the functions end in it. A PartitionSpec does so
where there is a mesh that it can be of, and in those functions.

Cost: one comparison where no device is given and two where it is one of JAX's
own, else a few calls of isinstance.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src import core
from jax._src import layout
from jax._src.mend import releases
from jax._src import mesh as mesh_lib
from jax._src import sharding_impls
from jax._src import tree_util
from jax._src.array_api import unknown_device
from jax._src.lib import xla_client as xc
from jax._src.mend import pages
from jax._src.mend import release_types
from jax._src.sharding import Sharding


# What jax.device_put takes and no creation function promises to; the names are
# those of one release or another.
_OF_DEVICE_PUT = tuple(
    kind for module, names in (
        (sharding_impls, ('PartitionSpec', 'P', 'TransferToMemoryKind')),
        (layout, ('Format', 'Layout')), (core, ('MemorySpace',)))
    for kind in releases.existing(module, names))

# What holds no tree of devices; UnspecifiedValue is jax.jit's own default.
_ONE = (xc.Device, Sharding, sharding_impls.UnspecifiedValue)

# Functions that end in jax.device_put, on one release or another.
_TAKING_SPECS = frozenset({
    'jax.numpy.arange', 'jax.numpy.empty', 'jax.numpy.eye', 'jax.numpy.full',
    'jax.numpy.full_like', 'jax.numpy.from_dlpack', 'jax.numpy.fft.rfftfreq',
    'jax.Array.to_device', 'jax.dlpack.from_dlpack'})


def of(function: str, device: Any) -> Any:
  """Reads the `device` argument of a public function.

  Args:
    function: the name of the public function.
    device: its ``device`` argument.

  Returns:
    `device`, or ``None`` if that says no more than where the program runs.

  Raises:
    TypeError: if `device` is nothing that says where an array is.
  """
  if device is None or type(device) is xc.Device:
    return device
  device = _without_token(device)
  if device is None:
    return None
  if not isinstance(device, _OF_DEVICE_PUT) or (
      isinstance(device, sharding_impls.PartitionSpec)
      and not (function in _TAKING_SPECS and _within_mesh())):
    check(function, device)
  return device


def _within_mesh() -> bool:
  return not (mesh_lib.get_abstract_mesh().empty
              and mesh_lib.thread_resources.env.physical_mesh.empty)


def check(function: str, device: Any) -> None:
  """Refuses what is no device.

  Args:
    function: the name of the public function, or of a method.
    device: its ``device`` argument.

  Raises:
    TypeError: if `device` is not ``None``, a device, a sharding, or what a
      traced array answers.
  """
  if device is None or isinstance(device, (xc.Device, Sharding)):
    return
  raise TypeError(
      f'{function}: expected device to be None, a jax.Device or a'
      f' jax.sharding.Sharding, got {device!r} of type'
      f' {type(device).__name__}. jax.devices() and'
      ' jax.numpy.__array_namespace_info__().devices() list the devices; those'
      ' of a platform are jax.devices(\"cpu\").' +
      pages.see('array_api.md#what-may-be-a-device'))


def without_tokens(device: Any) -> Any:
  """Takes the tokens out of what a function of devices is given.

  Args:
    device: a device, a sharding, or a tree of these.

  Returns:
    The same with ``None`` for tokens; `device` itself if it holds none.
  """
  return _mapped(_without_token, device)


def to_put(device: Any) -> Any:
  """Takes the tokens out of what `jax.device_put` is given.

  Args:
    device: a device, a sharding, or a tree of these.

  Returns:
    The same with ``None`` for tokens, and in a program with a memory for one
    with a memory; `device` itself if it holds none.
  """
  return _mapped(_to_put, device)


def constrained(constrain: Callable, x: Any, shardings: Any) -> Any:
  """Applies a sharding constraint of which some are tokens, or returns None.

  Args:
    constrain: `jax.lax.with_sharding_constraint`.
    x: a tree of arrays.
    shardings: a tree of shardings, a prefix of that of `x`.

  Returns:
    The tree of results, where the tokens change nothing; or None if there are
    no tokens.
  """
  if without_tokens(shardings) is shardings:
    return None
  def one(sharding, part):
    sharding = _without_token(sharding)
    return part if sharding is None else constrain(part, sharding)
  return tree_util.tree_map(one, shardings, x, is_leaf=lambda s: s is None)


def _mapped(change: Callable, device: Any) -> Any:
  if _is_jax_own(device):  # which is no token
    return device
  if device is None or isinstance(device, _ONE):
    return change(device)
  leaves, tree = tree_util.tree_flatten(device, is_leaf=lambda d: d is None)
  found = [change(leaf) for leaf in leaves]
  if all(new is old for new, old in zip(found, leaves)):
    return device
  return tree_util.tree_unflatten(tree, found)


def _is_jax_own(device: Any) -> bool:
  """True of a device, or a sharding on it, that no token can be."""
  kind = type(device)
  return kind is xc.Device or (
      kind is sharding_impls.SingleDeviceSharding
      and type(device._device) is xc.Device)


def _without_token(device: Any) -> Any:
  if type(device) is unknown_device.UnknownDevice:
    return None
  return unknown_device.unless_unknown(device)


def _to_put(device: Any) -> Any:
  place = _without_token(device)
  if place is None or place is device or core.trace_state_clean():
    return place
  # On the device that is known the program may not be.
  return release_types.memory_of_kind()(device.memory_kind)
