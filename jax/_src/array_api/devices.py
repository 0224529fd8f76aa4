# SPDX-License-Identifier: Apache-2.0
"""Devices that the Array API's inspection namespace offers (jax#27606).

The standard has a caller loop over ``devices()`` and hand each entry to a
creation function, so every entry must be one that this process can write to
and read from. The list is therefore built from the *addressable* devices of
each backend, not from all the devices that a backend knows about: in a
multi-process job the others belong to other processes.

Algorithm: take the default backend, then every other initialised backend in
the order of its registration, ask each client for its addressable devices and
keep the first occurrence of each. The default backend is looked up by itself,
not in the table of backends: the table is keyed by name, so a client that was
replaced under its name (``jax_platforms="cpu,cpu"``) is the default and yet not
in it.

Cost: one pass over the clients; the first call initialises the backends, as
:func:`jax.devices` does. Limits: shardings are not listed (there are as many as
there are meshes), though every ``device=`` argument takes one.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from jax._src import xla_bridge as xb
from jax._src.lib import xla_client as xc
from jax._src.mend import pages

INFO = 'jax.numpy.__array_namespace_info__()'


def addressable_devices() -> list[xc.Device | None]:
  """Lists what ``device=`` may be, other than a sharding.

  Returns:
    A new list: ``None``, then each device that this process can address, once,
    those of the default backend first.

  Raises:
    RuntimeError: where :func:`jax.devices` does, for instance if a platform
      that ``jax_platforms`` names fails to initialise. A backend that is
      registered to fail quietly is left out.
  """
  return [None, *_each_device_once([xb.get_backend(), *xb.backends().values()])]


def _each_device_once(clients: Iterable[xc.Client]) -> list[xc.Device]:
  # A dict, not a set, for its order. Devices hash by identity: two clients'
  # devices of the same id stay apart, one client listed twice does not.
  return list(dict.fromkeys(d for c in clients for d in c.local_devices()))


def check_kind(kind: Any, valid: Collection[str]) -> None:
  """Refuses a ``kind`` that names no group of dtypes.

  Args:
    kind: the ``kind`` argument of ``dtypes``.
    valid: the names of the groups.

  Raises:
    TypeError: if ``kind`` is not ``None``, a string or a tuple of strings.
    ValueError: if a name is not in ``valid``.
  """
  names = kind if isinstance(kind, tuple) else () if kind is None else (kind,)
  for name in names:
    if not isinstance(name, str):
      raise TypeError(
          f'{INFO}.dtypes: expected kind to be None, a string or a tuple of'
          f' strings, got {kind!r}. The valid kinds are {_quoted(valid)}.' +
          pages.see('array_api.md#what-to-expect'))
    if name not in valid:
      raise ValueError(
          f'{INFO}.dtypes: unknown kind {name!r}. The valid kinds are'
          f' {_quoted(valid)}, and a tuple of these.' +
          pages.see('array_api.md#what-to-expect'))


def _quoted(names: Iterable[str]) -> str:
  return ', '.join(map(repr, names))
