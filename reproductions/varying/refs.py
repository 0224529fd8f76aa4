# SPDX-License-Identifier: Apache-2.0
"""Refs in shard_map that are written with values that vary."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

REPORT = "jax#40823"


def _sharded(f, out_specs):
  mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
  return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("x"),
                               out_specs=out_specs))


def write_a_varying_value():
  """a ref made from zeros can be written with what varies, in a loop too"""
  def f(x):
    ref = jax.new_ref(jnp.zeros(()))
    def body(c, a):
      ref[...] += a
      return c, None
    jax.lax.scan(body, 0., x)
    return ref[...][None]
  try:
    got = _sharded(f, P("x"))(jnp.array([1., 2., 3., 4.]))
  except (TypeError, ValueError) as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  assert np.allclose(got, [3., 7.]), f"sums are {got}"
  return "each device has its own sum"


def write_in_a_branch():
  """what only some devices write to a ref isn't taken for replicated"""
  def f(x):
    ref = jax.new_ref(jnp.zeros(()))
    def write():
      ref[...] += 1.
    jax.lax.cond(x[0] > 2., write, lambda: None)
    return ref[...]
  run = _sharded(f, P())
  try:
    run(jnp.array([1., 2., 3., 4.]))
  except ValueError as e:
    assert "out_specs" in str(e), f"ValueError: {e}"
    return "out_specs=P() is refused"
  raise AssertionError(
      "out_specs=P() is accepted though devices return 0 and 1")
