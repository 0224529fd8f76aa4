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


def _run(f, x, *shared, out=P("x")):
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  specs = (P("x"),) + (P(),) * len(shared)
  g = shard_map(f, mesh=mesh, in_specs=specs, out_specs=out)
  return np.asarray(jax.jit(g)(x, *shared))


def gradient_of_shared_rate():
  """odeint's gradient with respect to a shared argument is summed"""
  y = jnp.arange(1., 5.)
  def loss(y, k):
    return odeint(lambda y, t, k: -k * y, y, jnp.array([0., 1.]), k)[1].sum()
  got = _run(jax.grad(loss, 1), y, jnp.float32(.5), out=P())
  np.testing.assert_allclose(got, -10 * np.exp(-.5), rtol=1e-3)
  return f"{got}, as without shard_map"
