# SPDX-License-Identifier: Apache-2.0
"""jax#34811, as its author would type it."""

import numpy as np

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

try:
  from jax.sharding import AxisType
  EXPLICIT = (AxisType.Explicit,)
except ImportError:  # up to 0.5.2
  EXPLICIT = {jax.sharding.AxisTypes.Explicit: ("x",)}

REPORT = "jax#34811"


def axis_types():
  """custom_partitioning's callbacks see that the mesh's axes are Explicit"""
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",),
              axis_types=EXPLICIT)
  seen = []
  double = custom_partitioning(lambda x: x * 2)

  def partition(mesh, args, result):
    seen.append(mesh.axis_types)
    return mesh, lambda x: x * 2, result.sharding, (result.sharding,)

  double.def_partition(
      infer_sharding_from_operands=lambda m, a, r: a[0].sharding,
      partition=partition, sharding_rule="i -> i")
  with (getattr(jax, "set_mesh", None) or jax.sharding.use_mesh)(mesh):
    x = jax.device_put(np.arange(4.), NamedSharding(mesh, P("x")))
    np.testing.assert_allclose(np.asarray(jax.jit(double)(x)), [0, 2, 4, 6])
  assert seen == [mesh.axis_types], seen
  return str(seen[0])
