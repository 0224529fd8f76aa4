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
"""Custom derivatives in shard_map with check_rep=True."""
import unittest

import jax
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27664"


def _shard_map(f, in_specs, out_specs):
  if jax.__version_info__ >= (0, 6):
    raise unittest.SkipTest("check_rep's rules are of the 0.5 line")
  from jax.experimental.shard_map import shard_map
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('i',))
  return shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs)


P = jax.sharding.PartitionSpec


def custom_vjp_with_symbolic_zeros():
  """custom_vjp with symbolic_zeros=True runs in shard_map, check on"""
  @jax.custom_vjp
  def scaled(x, a):
    return x * a

  scaled.defvjp(lambda x, a: (x.value * a.value, a.value),
                lambda a, ct: (ct * a, None), symbolic_zeros=True)
  f = _shard_map(lambda x: scaled(x, 2.), P('i'), P('i'))
  try:
    grad = jax.jit(jax.grad(lambda x: f(x).sum()))(jnp.arange(4.))
  except NotImplementedError as e:
    raise AssertionError(str(e)[:60]) from None
  assert np.allclose(grad, 2), str(grad)
  return "the right gradient"
