# SPDX-License-Identifier: Apache-2.0
"""Linear solves in shard_map with check_rep=True."""
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


def distributed_linear_solve():
  """the solution of a solve whose matvec is a psum is replicated"""
  def body(a, b):
    columns = lax.axis_index('i') * 2 + jnp.arange(2)
    matvec = lambda x: lax.psum(a @ x[columns], 'i')
    def solve(matvec, b):  # Richardson's iteration
      return lax.scan(lambda x, _: (x + .3 * (b - matvec(x)), None), b, None,
                      length=50)[0]
    return lax.custom_linear_solve(matvec, b, solve)
  a = jnp.diag(jnp.arange(1., 5.))
  f = _shard_map(body, (P(None, 'i'), P()), P())
  try:
    x = jax.jit(f)(a, jnp.ones(4))
  except (ValueError, TypeError) as e:
    raise AssertionError(str(e)[:60]) from None
  assert np.allclose(x, 1 / np.arange(1., 5.), atol=1e-4), str(x)
  return "x replicated"
