# SPDX-License-Identifier: Apache-2.0
"""Reductions over several axes of what varies over some."""

import numpy as np

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

REPORT = "jax#40823"


def _sharded(f, out_specs, in_specs=None, shape=(2,), names=("x",)):
  devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
  return jax.shard_map(f, mesh=Mesh(devices, names),
                       in_specs=P("x") if in_specs is None else in_specs,
                       out_specs=out_specs)


def psum():
  """psum over (x, y) takes a value that varies over x only"""
  f = lambda x: lax.psum(x, ("x", "y"))
  out = jax.jit(_sharded(f, P(), shape=(2, 2), names=("x", "y")))(
      jnp.array([1., 3.]))
  assert out.tolist() == [8.], out
  return "each device adds its own copy"


def pmax():
  """pmax over (x, y) takes a value that varies over x only"""
  f = lambda x: lax.pmax(x, ("x", "y"))
  out = jax.jit(_sharded(f, P(), shape=(2, 2), names=("x", "y")))(
      jnp.array([1., 3.]))
  assert out.tolist() == [3.], out
  return "the largest value"
