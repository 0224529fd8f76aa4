# SPDX-License-Identifier: Apache-2.0
"""Derivatives in loops whose devices take different branches."""
import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "jax#40823"


def descent():
  """a gradient step in a branch of a loop's body that some devices take"""
  def f(x):
    def body(c):
      y, i = c
      step = lambda y: y - .1 * jax.grad(lambda y: (y - x[0]) ** 2)(y)
      far = abs(y - x[0]) > .5
      return lax.cond(far, step, lambda y: y, y), i + 1
    return lax.while_loop(lambda c: c[1] < 5, body, (0., 0))[0][None]
  x = np.array([0., 1., 2., 3.], np.float32)
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  g = shard_map(f, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
  try:
    text = str(jax.make_jaxpr(g)(x))
  except (TypeError, ValueError) as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  assert "psum" not in text, "the derivative is summed over devices"
  want = np.concatenate([jax.jit(f)(x[i:i + 1]) for i in range(4)])
  got = jax.jit(g)(x)
  assert np.allclose(got, want, rtol=1e-5), got
  return "each device descends by itself"
