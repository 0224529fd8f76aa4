# SPDX-License-Identifier: Apache-2.0
"""An einsum whose unreduced result isn't what its last contraction leaves."""

import numpy as np

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

REPORT = "jax#31918"


def unreduced_einsum():
  """an einsum that sums the split dimension too early says so"""
  mesh = Mesh(np.array(jax.devices()[:2]), ("x",), (AxisType.Explicit,))
  shapes = [(4, 6), (6, 4), (4, 4)]
  specs = [P(None, "x"), P("x", None), P(None, None)]
  with jax.set_mesh(mesh):
    args = [jax.device_put(np.ones(s, np.float32), NamedSharding(mesh, p))
            for s, p in zip(shapes, specs)]
    try:
      out = jnp.einsum("ij,jk,kl->il", *args,
                       out_sharding=P(None, None, unreduced={"x"}))
      total = float(jax.sharding.reshard(out, P(None, None))[0, 0])
    except Exception as e:  # it has no public name
      assert type(e).__name__ == "ShardingTypeError", e
      return str(e)
  assert total == 24, total
  return str(total)
