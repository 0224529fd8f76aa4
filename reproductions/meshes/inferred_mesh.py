# SPDX-License-Identifier: Apache-2.0
"""What only a type places, on the one mesh that fits."""

import numpy as np

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

REPORT = "jax#28193"


def gradient_over_explicit_axes():
  """jax.grad over an Explicit mesh axis, without jit and jax.set_mesh"""
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",),
              axis_types=(AxisType.Explicit,))
  x = jax.device_put(np.arange(4.), NamedSharding(mesh, P("x")))
  value, grad = jax.value_and_grad(lambda x: jnp.sum(x * x))(x)
  np.testing.assert_allclose(value, 14.)
  np.testing.assert_allclose(np.asarray(grad), 2 * np.arange(4.))
  return str(grad.sharding.spec)
