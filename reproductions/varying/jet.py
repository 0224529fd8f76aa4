# SPDX-License-Identifier: Apache-2.0
"""Taylor mode, jax.experimental.jet, in a shard_map."""
import jax
from jax.experimental import jet
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: jet"


def _terms(f, out_specs):
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map

  def g(x, w):
    one = jnp.ones_like(x)
    return jet.jet(lambda x: f(x, w), (x,), ([one, 0. * x],))[1]
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  h = jax.jit(shard_map(g, mesh=mesh, in_specs=(P("x"), P()),
                        out_specs=out_specs))
  x, w = np.arange(4, dtype=np.float32), np.float32(2.)
  return np.array(h(x, w)), x, w


def shared_factor():
  """The terms of sin(x * w), each device's x and a shared w"""
  got, x, w = _terms(lambda x, w: jnp.sin(x * w), P("x"))
  want = [w * np.cos(x * w), -w * w * np.sin(x * w)]
  np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
  return "as on one device"


def sum_over_devices():
  """The terms of a sum over devices"""
  got, x, w = _terms(lambda x, w: jax.lax.psum(x * x * w, "x"), P())
  want = [[np.sum(2 * x * w)], [8 * w]]
  np.testing.assert_allclose(got, want, rtol=1e-4)
  return "as on one device"
