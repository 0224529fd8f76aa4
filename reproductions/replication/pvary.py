# SPDX-License-Identifier: Apache-2.0
"""pvary on the 0.5 line."""
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


def pvary():
  """jax.lax.pvary exists, and its transpose is a psum"""
  assert hasattr(lax, 'pvary'), "no jax.lax.pvary"
  f = _shard_map(
      lambda x, w: jax.grad(lambda w: (x * lax.pvary(w, 'i')).sum())(w)[None],
      (P('i'), P()), P('i'))
  grad = jax.jit(f)(jnp.arange(4.), 2.)
  assert np.allclose(grad, 6), str(grad)
  return f"gradient {grad}"
