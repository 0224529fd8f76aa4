# SPDX-License-Identifier: Apache-2.0
"""The gradient by a weight that is reduced over a mesh axis, in a scan."""

import numpy as np

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

REPORT = "jax#40823"


def gradient_of_a_reduced_weight():
  """gradient by a reduced weight that a scan closes over"""
  mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

  def f(w, x):
    def loss(w):
      w = lax.pcast(w, "x", to="reduced")
      y = lax.scan(lambda c, _: (c * w, None), x, None, length=2)[0]
      return lax.psum(y.sum(), "x")
    return jax.grad(loss)(w)

  w, x = np.float32([2., 3.]), np.float32([1., 2., 3., 4.])
  out = np.asarray(jax.jit(jax.shard_map(
      f, mesh=mesh, in_specs=(P(), P("x")), out_specs=P()))(w, x))
  np.testing.assert_allclose(out, 2 * w * np.float32([4., 6.]))
  return str(out)
