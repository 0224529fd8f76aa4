# SPDX-License-Identifier: Apache-2.0
"""Gradients that 0.6.0 refuses inside shard_map."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REPORT = "jax#28193"


def _run(f, x, *shared, out=P("x")):
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  specs = (P("x"),) + (P(),) * len(shared)
  g = shard_map(f, mesh=mesh, in_specs=specs, out_specs=out)
  return np.asarray(jax.jit(g)(x, *shared))


def gradient_of_update():
  """grad through dynamic_update_slice works inside shard_map"""
  x = jnp.arange(1., 9.)
  def loss(x):
    return jnp.sum(jax.lax.dynamic_update_slice(x ** 2, 3. * x[:1], (0,)))
  got = _run(jax.grad(loss), x)
  np.testing.assert_allclose(got, np.where(np.arange(8) % 2, 2 * x, 3.))
  return f"{got[:3]}, as without shard_map"


def gradient_of_rfft():
  """grad through a real FFT works inside shard_map"""
  x = jnp.arange(1., 9.)
  got = _run(jax.grad(lambda x: jnp.real(jnp.fft.rfft(x)[0]) ** 2), x)
  want = np.repeat(2 * np.asarray(x).reshape(4, 2).sum(1), 2)
  np.testing.assert_allclose(got, want, rtol=1e-5)
  return f"{got[:3]}, as without shard_map"
