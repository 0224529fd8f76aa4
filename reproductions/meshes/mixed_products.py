# SPDX-License-Identifier: Apache-2.0
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
