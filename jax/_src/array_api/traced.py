# SPDX-License-Identifier: Apache-2.0
"""The device of a traced array, ``x.device`` (jax#26000).

The standard has code read ``x.device`` and make further arrays there. Under a
transformation ``x`` is a tracer, and what can be said depends on what is
beneath it:

* ``grad``, ``vmap``, ``jvp`` and ``linearize`` that run operation by operation
  keep the array itself in the tracer. The answer is its device or its sharding,
  as without the transformation. The layout of a whole batch is none for one of
  its elements, so an array that is spread over several devices and mapped over
  answers a token.
* ``jit``, ``scan``, ``cond``, ``eval_shape``, ``shard_map`` and all else that
  traces a program once for arguments on any device know of no device. The
  answer is a token, :mod:`~jax._src.array_api.unknown_device`, whatever device
  the arguments are on, so a program is not traced again for another device.

Limits: the sharding that a type has along Explicit axes is no answer here. It
is the layout of one shape, and code that follows the standard gives
``x.device`` to arrays of others; ask ``jax.typeof(x).sharding`` for it. Cost:
one step for each transformation that ``x`` is under, and nothing unless
somebody asks.
"""
from __future__ import annotations

from jax._src import core
from jax._src.array_api import placement as array_api_placement
from jax._src.array_api import unknown_device
from jax._src.lib import xla_client as xc
from jax._src.sharding import Sharding


def device_of(tracer: core.Tracer) -> xc.Device | Sharding:
  """The device of a traced array.

  Args:
    tracer: an array that is traced.

  Returns:
    The device or the sharding of the array that `tracer` stands for, or, if it
    stands for none, a token for where the program runs.
  """
  value, mapped = array_api_placement.concrete(tracer)
  if value is None or (mapped and isinstance(value.device, Sharding)):
    return unknown_device.where_it_runs()
  return value.device
