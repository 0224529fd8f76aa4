# SPDX-License-Identifier: Apache-2.0
"""jax#29162, as its author would type it."""

import numpy as np

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

try:
  from jax.sharding import AxisType
  EXPLICIT = (AxisType.Explicit,)
except ImportError:  # up to 0.5.2
  EXPLICIT = {jax.sharding.AxisTypes.Explicit: ("x",)}

REPORT = "jax#29162"


def _weighted(spec):
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",),
              axis_types=EXPLICIT)
  x = jax.device_put(np.arange(8.), NamedSharding(mesh, P("x")))
  w = jax.device_put(np.arange(8.), NamedSharding(mesh, spec))
  f = shard_map(lambda x: x * jnp.sum(w), mesh=mesh, in_specs=P("x"),
                out_specs=P("x"))
  out = np.asarray(jax.jit(f)(x))
  np.testing.assert_allclose(out, np.arange(8.) * 28)
  return str(out)


def captures_replicated():
  """shard_map captures an array that is replicated over an Explicit axis"""
  return _weighted(P())


def captures_split():
  """shard_map captures an array that is split over an Explicit axis"""
  return _weighted(P("x"))
