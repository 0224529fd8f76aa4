# SPDX-License-Identifier: Apache-2.0
"""The gradient of a shard_map inside of one over another axis, on 0.6.0."""
import jax
from jax.experimental.shard_map import shard_map
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: nested"


def replication():
  """what varies outside of a nested shard_map varies inside of it (0.6.0)"""
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
  inner = shard_map(lambda a, b: a * b, mesh=mesh, in_specs=(P(), P("y")),
                    out_specs=P("y"))
  outer = jax.jit(shard_map(lambda a, b: inner(a, b), mesh=mesh,
                            in_specs=(P("x"), P()), out_specs=P("x"),
                            auto=frozenset({"y"})))
  a, b = np.arange(8.).reshape(4, 2), np.ones((4, 2))
  got = jax.grad(lambda b: outer(a, b).sum())(b)
  want = np.tile(a[:2] + a[2:], (2, 1))
  assert np.allclose(got, want), f"the gradient is {got[0]}, not {want[0]}"
  return "the gradient counts each device's part once"
