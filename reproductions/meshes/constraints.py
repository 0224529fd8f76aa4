# SPDX-License-Identifier: Apache-2.0
"""A sharding over the mesh of outside, used in a partly manual shard_map."""

import numpy as np

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

try:
  from jax.sharding import AxisType
  AUTO, EXPLICIT = (AxisType.Auto,) * 2, (AxisType.Explicit,) * 2
except ImportError:  # up to 0.5.2
  from jax.sharding import AxisTypes
  AUTO = {AxisTypes.Auto: ("x", "y")}
  EXPLICIT = {AxisTypes.Explicit: ("x", "y")}

REPORT = "partly manual constraints"


def _placed(place, types, by_spec):
  shard_map, partly = getattr(jax, "shard_map", None), {"axis_names": {"x"}}
  if shard_map is None:
    from jax.experimental.shard_map import shard_map
    partly = {"auto": frozenset({"y"}), "check_rep": False}
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"),
              axis_types=types)
  where = P(None, "y") if by_spec else NamedSharding(mesh, P(None, "y"))
  f = shard_map(lambda x: place(x * 2, where), mesh=mesh, in_specs=P("x"),
                out_specs=P("x"), **partly)
  with (getattr(jax, "set_mesh", None) or jax.sharding.use_mesh)(mesh):
    x = jax.device_put(np.arange(8.).reshape(2, 4), NamedSharding(mesh, P("x")))
    out = np.asarray(jax.jit(f)(x))
  np.testing.assert_allclose(out, np.arange(8.).reshape(2, 4) * 2)
  return str(out.tolist())


def constraint_inside():
  """with_sharding_constraint in a partly manual shard_map"""
  constrain = jax.lax.with_sharding_constraint
  _placed(constrain, AUTO, by_spec=True)
  return _placed(constrain, AUTO, by_spec=False)


def reshard_inside():
  """reshard in a partly manual shard_map, by a sharding made outside"""
  from jax._src import pjit  # its public place changed
  return _placed(pjit.reshard, EXPLICIT, by_spec=False)
