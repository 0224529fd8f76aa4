# SPDX-License-Identifier: Apache-2.0
"""jvp of a shard_map within jit, with a Python number for the tangent."""

import jax
import numpy as np

REPORT = "shard_map: Python tangents"


def python_tangent():
  """jit of jvp of a shard_map with a Python float for the tangent"""
  p = jax.sharding.PartitionSpec
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
  f = jax.shard_map(lambda w, x: w * x, mesh=mesh, in_specs=(p(), p("x")),
                    out_specs=p("x"))
  x = np.arange(len(jax.devices()), dtype=np.float32)
  out = jax.jit(lambda w: jax.jvp(lambda w: f(w, x), (w,), (3.,))[1])(2.)
  np.testing.assert_allclose(out, 3 * x)
  return "the derivative"
