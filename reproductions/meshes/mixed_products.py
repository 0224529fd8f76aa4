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
"""jax#31799: products under a mesh with Explicit axes, of what has none."""

import numpy as np

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

REPORT = "jax#31799"


def product_gradient():
  """the gradient of a product of plain arrays, under Explicit axes"""
  devices = np.array(jax.devices()[:2])
  if hasattr(jax.sharding, "AxisType"):
    types = (jax.sharding.AxisType.Explicit,)
  else:  # up to 0.5.2
    types = {jax.sharding.AxisTypes.Explicit: ("x",)}
  mesh = Mesh(devices, ("x",), axis_types=types)
  x = np.arange(8.).reshape(2, 4)
  with (getattr(jax, "set_mesh", None) or jax.sharding.use_mesh)(mesh):
    got = jax.grad(lambda w: jnp.sum(x @ w))(np.ones(4))
  np.testing.assert_allclose(got, x.sum(0))
  return str(np.asarray(got).tolist())
