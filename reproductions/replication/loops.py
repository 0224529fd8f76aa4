# SPDX-License-Identifier: Apache-2.0
"""while_loop in shard_map with check_rep=True."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  mesh = Mesh(np.array(jax.devices()[:2]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def adaptive_time_step():
  """a time loop with a global step runs in shard_map with the check on"""
  def steps(u):
    def body(c):
      u, t = c
      dt = lax.pmin(jnp.minimum(.3 / (1 + jnp.abs(u).max()), 1 - t), 'i')
      return u + dt * jnp.sin(u), t + dt
    return lax.while_loop(lambda c: c[1] < 1, body, (u, 0.))

  u = jnp.linspace(0., 7., 8)
  try:
    _, t = jax.jit(_shard_map(steps, P('i'), (P('i'), P())))(u)
  except NotImplementedError as e:
    raise AssertionError(str(e)[:60]) from None
  assert abs(t - 1) < 1e-5, f"t = {t}"
  return f"t = {t:.6g}, replicated"
