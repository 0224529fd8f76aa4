# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Reductions over several axes of what varies over some."""

import numpy as np

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

REPORT = "jax#40823"


def _sharded(f, out_specs, in_specs=None, shape=(2,), names=("x",)):
  shard_map = getattr(jax, "shard_map", None)
  if shard_map is None:
    from jax.experimental.shard_map import shard_map
  devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
  return shard_map(f, mesh=Mesh(devices, names),
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
