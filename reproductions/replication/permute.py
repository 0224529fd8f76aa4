# SPDX-License-Identifier: Apache-2.0
"""ppermute over one axis where devices part ways along another."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#40823"


def permute_in_a_branch():
  """ppermute over y in a branch that some devices along x take"""
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
  swap = [(0, 1), (1, 0)]

  def f(x):
    return lax.cond(lax.axis_index("x") == 0,
                    lambda x: lax.ppermute(x, "y", swap),
                    lambda x: 0. * x - 1., x)

  x = np.array([[1., 2.], [3., 4.]], np.float32)
  f = jax.jit(shard_map(f, mesh=mesh, in_specs=P("x", "y"),
                        out_specs=P("x", "y")))
  text = f.lower(x).as_text()
  # Run, it would wait for devices that never come.
  assert "collective_permute" not in text, "waits for all devices of the mesh"
  out = np.asarray(f(x))
  np.testing.assert_allclose(out, [[2, 1], [-1, -1]])
  return str(out)
