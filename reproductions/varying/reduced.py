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
"""The gradient by a weight that is reduced over a mesh axis, in a scan."""

import numpy as np

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

REPORT = "jax#40823"


def gradient_of_a_reduced_weight():
  """gradient by a reduced weight that a scan closes over"""
  mesh = Mesh(np.array(jax.devices()[:2]), ("x",))

  def f(w, x):
    def loss(w):
      w = lax.pcast(w, "x", to="reduced")
      y = lax.scan(lambda c, _: (c * w, None), x, None, length=2)[0]
      return lax.psum(y.sum(), "x")
    return jax.grad(loss)(w)

  w, x = np.float32([2., 3.]), np.float32([1., 2., 3., 4.])
  out = np.asarray(jax.jit(jax.shard_map(
      f, mesh=mesh, in_specs=(P(), P("x")), out_specs=P()))(w, x))
  np.testing.assert_allclose(out, 2 * w * np.float32([4., 6.]))
  return str(out)
