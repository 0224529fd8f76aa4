# SPDX-License-Identifier: Apache-2.0
"""A shard_map within another, with check_rep=True."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def nested_shard_map():
  """a shard_map over the auto axes of another one, and its gradient"""
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('i', 'j'))
  inner = shard_map(lambda x: x * lax.psum(x.sum(), 'j'), mesh=mesh,
                    in_specs=P('j'), out_specs=P('j'))
  f = shard_map(lambda x: inner(x), mesh=mesh, in_specs=P('i'),
                out_specs=P('i'), auto=frozenset({'j'}))
  x = np.arange(8., dtype=np.float32)
  try:
    dx = jax.jit(jax.grad(lambda x: jnp.sum(f(x))))(x)
  except AttributeError as e:
    raise AssertionError(str(e)) from None
  want = np.repeat([2 * x[:4].sum(), 2 * x[4:].sum()], 4)
  assert np.allclose(dx, want), f'{dx}, not {want}'
  return "works, with the gradient of one device"
