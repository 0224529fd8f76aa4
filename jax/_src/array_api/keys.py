# SPDX-License-Identifier: Apache-2.0
"""Arrays of PRNG keys on devices (jax#27606).

A key array is an array of an extended dtype around an array of integers. The
functions that take a ``device`` hand such dtypes over to rules that know of
none, so the device was ignored, or refused with a bare NotImplementedError. The
functions here do to keys what is done to numbers: what runs now is made and
then put on the device by :func:`jax.device_put`, which knows keys; what is
traced gets a sharding constraint where numbers get one.

Cost: one transfer where a device is given.
"""
from __future__ import annotations

from typing import Any

from jax._src import dtypes
from jax._src.array_api import argument as array_api_argument
from jax._src.array_api import placement as array_api_placement
from jax._src.lib import xla_client as xc
from jax._src.mend import pages
from jax._src.sharding import Sharding


def placed(out: Any, like: Any, shape: Any, device: Any) -> Any:
  """Puts a filled array of keys where it is asked for.

  Args:
    out: the array.
    like: the array that a ``_like`` function follows, or None.
    shape: the shape that the caller gave to it, or None.
    device: the device or sharding that the caller gave, or None.

  Returns:
    `out`, on `device`, or with `like` if that is committed and the device and
    the shape are not given; under a transformation that traces, `out` itself.
  """
  if not is_key(out):
    return out
  if device is None and shape is None and getattr(like, '_committed', False):
    device = like.device
  if device is None or not array_api_placement.runs_now():
    return out
  return array_api_placement.put(out, device)


def is_key(x: Any) -> bool:
  """True if `x` is an array of PRNG keys."""
  return dtypes.issubdtype(getattr(x, 'dtype', None) or bool, dtypes.prng_key)


def device_of(keys: Any) -> xc.Device | Sharding:
  """The device of an array of keys, ``keys.device`` (jax#22597).

  Args:
    keys: the array, which isn't traced.

  Returns:
    The device of the integers. If that is a sharding, which has a dimension
    more than the keys have, the sharding of the keys.
  """
  device = keys._base_array.device
  return keys.sharding if isinstance(device, Sharding) else device


def is_moved(x: Any, sharding: Any) -> bool:
  """True if `x` is an array of keys that `sharding` is asked for.

  ``jnp.asarray`` hands on what the type of a traced array says already.
  """
  if sharding is None or not is_key(x):
    return False
  return sharding != getattr(getattr(x, 'aval', None), 'sharding', None)


def constrain(key: Any, device: xc.Device | Sharding) -> Any:
  """Has the program that is traced put keys on `device`.

  The constraint is on the integers, because on keys 0.5.3 and 0.6.0 make an
  invalid program of one that splits a dimension.

  Args:
    key: an array of keys.
    device: a device, or a sharding for arrays of its shape.

  Returns:
    `key`, constrained.
  """
  from jax import random  # not on top: it imports what imports this module
  from jax._src import pjit
  data = pjit.with_sharding_constraint(random.key_data(key), device)
  return random.wrap_key_data(data, impl=random.key_impl(key))


def to_device(key: Any, device: Any, stream: Any) -> Any:
  """Moves an array of keys; see :meth:`jax.Array.to_device`.

  Args:
    key: the array.
    device: a device, a sharding or None.
    stream: must be None.

  Returns:
    `key` on `device`.

  Raises:
    NotImplementedError: if there is a `stream`.
    TypeError: if `device` is no device.
  """
  if stream is not None:
    raise NotImplementedError(
        'jax.Array.to_device: expected stream to be None, got'
        f' {stream!r}. JAX orders its transfers by itself; leave it out.' +
        pages.see('array_api.md#moving'))
  device = array_api_argument.of('jax.Array.to_device', device)
  return key if device is None else array_api_placement.put(key, device)
