# SPDX-License-Identifier: Apache-2.0
"""cond in shard_map with check_rep=True."""
import jax
from jax import lax
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "jax#27664"

_MESH = Mesh(np.array(jax.devices()[:2]), ('i',))


def gradient_under_a_varying_predicate():
  """the backward pass of a branch that some devices take has no sum in it"""
  f = shard_map(
      lambda x, w: lax.cond(x[0] > 1, lambda: x * w, lambda: jnp.sin(x * w)),
      mesh=_MESH, in_specs=(P('i'), P()), out_specs=P('i'))
  grad = jax.grad(lambda w: f(jnp.arange(4.), w).sum())
  # Only the text: where the sum is inside, running it may hang.
  try:
    lines = str(jax.make_jaxpr(grad)(2.)).split('\n')
  except Exception as e:  # the check raises no narrower class
    raise AssertionError(str(e)[:70]) from None
  at = [l.index('branches=') for l in lines if 'branches=' in l]
  sums = [l for l in lines if 'psum' in l]
  inside = [l for l in sums if len(l) - len(l.lstrip()) > min(at)]
  assert not inside, f"inside of the branches: {inside[0].strip()}"
  return f"outside of the branches: {sums[0].strip()}"


def divergent_collective():
  """a collective in a branch that some devices take is refused"""
  f = shard_map(
      lambda x: lax.cond(x[0] > 1, lambda: lax.psum(x, 'i'), lambda: x),
      mesh=_MESH, in_specs=P('i'), out_specs=P('i'))
  try:
    jax.make_jaxpr(f)(jnp.arange(4.))
  except ValueError as e:
    assert "psum" in str(e), f"ValueError: {e}"
    return str(e)[:60] + "..."
  raise AssertionError("psum in a branch that one of two devices takes")
