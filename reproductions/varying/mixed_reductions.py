# SPDX-License-Identifier: Apache-2.0
"""Reductions over several axes of what varies over some."""

import numpy as np

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

REPORT = "jax#40823"


def _over_both(reduction):
  """`reduction` over (x, y) of 1 and 3, by x."""
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
  f = jax.shard_map(lambda x: reduction(x, ("x", "y")), mesh=mesh,
                    in_specs=P("x"), out_specs=P())
  return jax.jit(f)(jnp.array([1., 3.])).tolist()


def psum():
  """psum over (x, y) takes a value that varies over x only"""
  out = _over_both(lax.psum)
  assert out == [8.], out
  return "each device adds its own copy"


def pmax():
  """pmax over (x, y) takes a value that varies over x only"""
  out = _over_both(lax.pmax)
  assert out == [3.], out
  return "the largest value"
