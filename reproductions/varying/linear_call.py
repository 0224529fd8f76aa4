# SPDX-License-Identifier: Apache-2.0
"""linear_call in shard_map."""
import jax
import jax.numpy as jnp
from jax.custom_derivatives import linear_call
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: linear_call"


def gradient_by_what_all_share():
  """linear_call's gradient by a shared value, with a factor per device"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  scaled = lambda w, x: linear_call(
      lambda w, x: w * x, lambda w, ct: jnp.sum(w * ct), w, x)
  f = shard_map(
      lambda w, x: jax.grad(lambda x: jnp.sum(scaled(w, x)))(x),
      mesh=mesh, in_specs=(P("x"), P()), out_specs=P())
  got = jax.jit(f)(np.arange(4, dtype=np.float32), np.float32(1.))
  assert np.allclose(got, 6.), f"gradient 6.0 is right, got {got}"
  return "the sum of all devices' factors"
