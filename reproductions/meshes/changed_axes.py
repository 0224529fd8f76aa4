# SPDX-License-Identifier: Apache-2.0
"""jax#30001: automatic axes for a while, in a partly manual shard_map."""

import inspect

import numpy as np

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

REPORT = "jax#30001"


def _gradient(**named):
  shard_map, partly = getattr(jax, "shard_map", None), {"axis_names": {"x"}}
  if shard_map is None:  # 0.6.0
    from jax.experimental.shard_map import shard_map
    partly = {"auto": frozenset({"y"})}
  auto_axes = getattr(jax.sharding, "auto_axes", None)
  if auto_axes is None:  # up to 0.6.2
    from jax.experimental.shard import auto_axes
  layout = next(n for n in inspect.signature(auto_axes).parameters
                if n.startswith("out_sharding"))
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"),
              axis_types=(AxisType.Explicit,) * 2)
  layer = lambda x: jnp.sin(x) * jnp.cos(x)
  f = shard_map(auto_axes(layer, **{layout: P(None, "y")}, **named), mesh=mesh,
                in_specs=P("x"), out_specs=P("x"), **partly)
  with (getattr(jax, "set_mesh", None) or jax.sharding.use_mesh)(mesh):
    x = jax.device_put(np.arange(8.).reshape(2, 4), NamedSharding(mesh, P("x")))
    got = np.asarray(jax.jit(jax.grad(lambda x: f(x).sum()))(x))
  np.testing.assert_allclose(got, np.cos(2 * np.arange(8.).reshape(2, 4)),
                             rtol=1e-4, atol=1e-5)
  return str(got.round(2).tolist())


def default_axes():
  """auto_axes without axes in a partly manual shard_map, and its gradient"""
  return _gradient()


def named_axes():
  """the gradient of auto_axes with axes in a partly manual shard_map"""
  return _gradient(axes="y")
