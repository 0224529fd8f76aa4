# SPDX-License-Identifier: Apache-2.0
"""The gradient of odeint inside shard_map."""
import jax
from jax.experimental.ode import odeint
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REPORT = "jax#40823"


def gradient_of_shared_rate():
  """odeint's gradient with respect to a shared argument is summed"""
  y = jnp.arange(1., 5.)
  def loss(y, k):
    return odeint(lambda y, t, k: -k * y, y, jnp.array([0., 1.]), k)[1].sum()
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  f = shard_map(jax.grad(loss, 1), mesh=mesh, in_specs=(P("x"), P()),
                out_specs=P())
  got = jax.jit(f)(y, jnp.float32(.5))
  np.testing.assert_allclose(got, -10 * np.exp(-.5), rtol=1e-3)
  return f"{got}, as without shard_map"
