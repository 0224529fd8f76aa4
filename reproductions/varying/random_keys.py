# SPDX-License-Identifier: Apache-2.0
"""Sampling by a key that all devices share."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def _run(f, x, *shared, out=P("x")):
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  specs = (P("x"),) + (P(),) * len(shared)
  g = jax.shard_map(f, mesh=mesh, in_specs=specs, out_specs=out)
  return np.asarray(jax.jit(g)(x, *shared))


def gamma_with_a_shared_key():
  """The refusal of random.gamma by a shared key says what to write"""
  key, a = jax.random.key_data(jax.random.key(0)), jnp.arange(1., 5.)
  draw = lambda a, k: jax.random.gamma(jax.random.wrap_key_data(k), a)
  try:
    _run(draw, a, key)
  except TypeError as e:
    assert "fold_in(key, jax.lax.axis_index" in str(e), str(e)
    return "fold_in(key, axis_index) or a cast of the key"
  raise AssertionError("correlated draws are not refused")
