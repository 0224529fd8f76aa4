# SPDX-License-Identifier: Apache-2.0
"""A shard_map over one axis inside of one over another."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: nested"


def nested_gradient():
  """the gradient of a shard_map inside of a shard_map"""
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
  inner = jax.shard_map(jnp.multiply, axis_names={"y"},
                        in_specs=(P(), P("y")), out_specs=P("y"))
  outer = jax.shard_map(lambda a, b: inner(a, b), mesh=mesh, axis_names={"x"},
                        in_specs=(P("x"), P()), out_specs=P("x"))
  a, b = np.ones((4, 3), np.float32), np.ones((4, 3), np.float32)
  try:
    got = jax.jit(jax.grad(lambda a, b: outer(a, b).sum()))(a, b)
  except ValueError as e:
    raise AssertionError(f"refused: {str(e).splitlines()[1][:70]}") from e
  assert np.allclose(got, 2.), got
  return "each device's part is counted"
