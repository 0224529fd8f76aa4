# SPDX-License-Identifier: Apache-2.0
"""while_loop in shard_map with check_rep=True."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def adaptive_time_step():
  """a time loop with a global step runs in shard_map with the check on"""
  def steps(u):
    def body(c):
      u, t = c
      dt = lax.pmin(jnp.minimum(.3 / (1 + jnp.abs(u).max()), 1 - t), 'i')
      return u + dt * jnp.sin(u), t + dt
    return lax.while_loop(lambda c: c[1] < 1, body, (u, 0.))

  mesh = Mesh(np.array(jax.devices()[:2]), ('i',))
  f = shard_map(steps, mesh=mesh, in_specs=P('i'), out_specs=(P('i'), P()))
  try:
    _, t = jax.jit(f)(jnp.linspace(0., 7., 8))
  except NotImplementedError as e:
    raise AssertionError(str(e)[:60]) from None
  assert abs(t - 1) < 1e-5, f"t = {t}"
  return f"t = {t:.6g}, replicated"
