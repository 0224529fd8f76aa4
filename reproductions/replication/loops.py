# SPDX-License-Identifier: Apache-2.0
"""while_loop in shard_map with check_rep=True."""
import unittest

import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  try:
    from jax.experimental.shard_map import shard_map
  except ImportError:
    raise unittest.SkipTest("0.5.3's shard_map") from None
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def adaptive_time_step():
  """a time loop with a global step runs in shard_map with the check on"""
  if jax.__version_info__ >= (0, 6):
    raise unittest.SkipTest("a report on the 0.5 line")
  P = jax.sharding.PartitionSpec

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
