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
"""What a ``device=`` argument may be, in one place (jax#26000, jax#27606).

A device is ``None``, a :class:`jax.Device` or a :class:`jax.sharding.Sharding`,
and, as a fourth, what ``x.device`` is where the device of ``x`` isn't known
while a program is traced: :data:`WHERE_IT_RUNS`. It places like ``None``: what
is made with it goes where the program that makes it runs.

Each function with a ``device`` argument hands it to :func:`of` first, so that
the functions agree on what they take, and what they don't take is refused with
the function's name. What ``jax.device_put`` knows beyond devices, a layout for
one, passes through: some of the functions end in it. A PartitionSpec does so
where there is a mesh that it can be of, and in those functions.

The token is the only member of an enumeration. That is what makes it equal to
itself alone, hashable, printable, and the same object after a copy or a pickle.
Cost: one comparison where no device is given, else two calls of isinstance.
"""
from __future__ import annotations

import enum
from typing import Any

from jax._src import core
from jax._src import layout
from jax._src import mesh as mesh_lib
from jax._src import sharding_impls
from jax._src.lib import xla_client as xc
from jax._src.sharding import Sharding


class UnknownDevice(enum.Enum):
  """The device of an array that is traced, where no device is known."""
  WHERE_IT_RUNS = "where the program runs"

  def __repr__(self) -> str:
    return f"<device: {self.value}>"

  __str__ = __repr__


WHERE_IT_RUNS = UnknownDevice.WHERE_IT_RUNS

# What jax.device_put takes and no creation function promises to; the names are
# those of one release or another.
_OF_DEVICE_PUT = tuple(
    getattr(module, name) for module, name in (
        (sharding_impls, "PartitionSpec"), (sharding_impls, "P"),
        (layout, "Format"), (layout, "Layout"), (core, "MemorySpace"),
        (sharding_impls, "TransferToMemoryKind"))
    if hasattr(module, name))

# Functions that end in jax.device_put, on one release or another.
_TAKING_SPECS = frozenset({
    "jax.numpy.arange", "jax.numpy.empty", "jax.numpy.eye", "jax.numpy.full",
    "jax.numpy.full_like", "jax.numpy.from_dlpack", "jax.numpy.fft.rfftfreq",
    "jax.Array.to_device", "jax.dlpack.from_dlpack"})


def of(function: str, device: Any) -> Any:
  """Reads the `device` argument of a public function.

  Args:
    function: the name of the public function.
    device: its ``device`` argument.

  Returns:
    `device`, or ``None`` if that is :data:`WHERE_IT_RUNS`.

  Raises:
    TypeError: if `device` is nothing that says where an array is.
  """
  if device is None or device is WHERE_IT_RUNS:
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
  if device is None or isinstance(
      device, (xc.Device, Sharding, UnknownDevice)):
    return
  raise TypeError(
      f"{function}: expected device to be None, a jax.Device or a"
      f" jax.sharding.Sharding, got {device!r} of type"
      f" {type(device).__name__}. jax.devices() and"
      " jax.numpy.__array_namespace_info__().devices() list the devices; those"
      " of a platform are jax.devices(\"cpu\").")


def without_tokens(device: Any) -> Any:
  """Puts ``None`` for :data:`WHERE_IT_RUNS` in what `jax.device_put` is given.

  Args:
    device: a device, or a tree of devices.

  Returns:
    The same without the token; `device` itself if it holds none.
  """
  from jax._src import tree_util  # not on top: few trees come by
  if device is None or isinstance(device, (xc.Device, Sharding)):
    return device
  if device is WHERE_IT_RUNS:
    return None
  leaves, tree = tree_util.tree_flatten(device, is_leaf=lambda d: d is None)
  if not any(leaf is WHERE_IT_RUNS for leaf in leaves):
    return device
  return tree_util.tree_unflatten(
      tree, [None if leaf is WHERE_IT_RUNS else leaf for leaf in leaves])
