# SPDX-License-Identifier: Apache-2.0
"""jax#17077 and jax#33226, as their authors would type them."""

import numpy as np

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

try:
  from jax.sharding import AxisType
  EXPLICIT = (AxisType.Explicit,)
except ImportError:  # up to 0.5.2
  EXPLICIT = {jax.sharding.AxisTypes.Explicit: ("x",)}

REPORT = "jax#17077, jax#33226"


def shard_map_keyword():
  """a function made by shard_map takes keyword arguments"""
  shard_map = getattr(jax, "shard_map", None)
  if shard_map is None:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  f = shard_map(lambda x, w: x * w, mesh=mesh, in_specs=(P("x"), P("x")),
                out_specs=P("x"))
  out = np.asarray(f(np.arange(4.), w=np.arange(4.)))
  np.testing.assert_allclose(out, [0, 1, 4, 9])
  return str(out)


def auto_axes_keyword():
  """auto_axes changes the mesh of arrays that are keyword arguments"""
  from jax._src import pjit  # its place in jax.sharding came later
  name = "out_sharding" if hasattr(jax, "shard_map") else "out_shardings"
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",),
              axis_types=EXPLICIT)
  with (getattr(jax, "set_mesh", None) or jax.sharding.use_mesh)(mesh):
    x = jax.device_put(np.arange(4.), NamedSharding(mesh, P("x")))
    f = pjit.auto_axes(lambda x, y: x * y, **{name: P("x")})
    out = np.asarray(f(x, y=x))
  np.testing.assert_allclose(out, [0, 1, 4, 9])
  return str(out)
