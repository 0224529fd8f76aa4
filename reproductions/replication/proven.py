# SPDX-License-Identifier: Apache-2.0
"""Gradients of accepted functions, in shard_map with check_rep=True."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"


def grad_of_branches_in_a_loop():
  """jax.grad of branches in a loop is accepted where the function is"""
  def f(x, w):
    def body(c, _):
      return lax.cond(w > .5, lambda a, b: (a, b * jnp.sin(w)),
                      lambda a, b: (a * jnp.sin(x), b), *c), None
    return lax.scan(body, (x, w), None, length=3)[0]
  mesh = Mesh(np.array(jax.devices()[:4]), ('i',))
  g = shard_map(f, mesh=mesh, in_specs=(P('i'), P()), out_specs=(P('i'), P()))
  try:
    dw = jax.jit(jax.grad(lambda w: g(jnp.ones(4), w)[1]))(1.)
  except Exception as e:  # pylint: disable=broad-except
    raise AssertionError(f'{type(e).__name__}: {str(e)[:80]}') from None
  want = np.sin(1) ** 3 + 3 * np.sin(1) ** 2 * np.cos(1)
  assert np.allclose(dw, want, rtol=1e-4), f'{dw}, not {want}'
  return f"accepted, gradient {float(dw):.4f}"
