# SPDX-License-Identifier: Apache-2.0
"""A loop that differentiates something linear beside what comes to vary."""
import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#28193"


def scan():
  """the gradient of p + s in a loop in which s comes to vary"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))

  def f(x, w):
    def step(carry, _):
      s, w = carry
      return (s * x[0], w - .1 * jax.grad(lambda w: w + s)(w)), None
    return lax.scan(step, (np.float32(1.), w), None, length=2)[0][1]

  x, w = np.arange(4, dtype=np.float32), np.float32(1.)
  run = jax.jit(shard_map(f, mesh=mesh, in_specs=(P("x"), P()), out_specs=P()))
  try:
    got = run(x, w)
  except (TypeError, ValueError) as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  # Two steps along the sum of four devices' gradients, each of which is 1.
  assert np.allclose(got, 1 - 2 * .1 * 4), f"{got}, and 0.2 is right"
  return "the gradient is summed over devices"
