# SPDX-License-Identifier: Apache-2.0
"""Custom derivatives in shard_map with check_rep=True."""
import jax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  mesh = Mesh(np.array(jax.devices()[:2]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


def custom_vjp_with_symbolic_zeros():
  """custom_vjp with symbolic_zeros=True runs in shard_map, check on"""
  @jax.custom_vjp
  def scaled(x, a):
    return x * a

  scaled.defvjp(lambda x, a: (x.value * a.value, a.value),
                lambda a, ct: (ct * a, None), symbolic_zeros=True)
  f = _shard_map(lambda x: scaled(x, 2.), P('i'), P('i'))
  try:
    grad = jax.jit(jax.grad(lambda x: f(x).sum()))(jnp.arange(4.))
  except NotImplementedError as e:
    raise AssertionError(str(e)[:60]) from None
  assert np.allclose(grad, 2), str(grad)
  return "the right gradient"
