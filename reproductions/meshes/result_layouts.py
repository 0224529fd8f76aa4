# SPDX-License-Identifier: Apache-2.0
"""An array over another mesh than the one that jax.set_mesh names."""

import numpy as np

import jax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

REPORT = "jax#32149"


def operation_under_another_mesh():
  """an operation under jax.set_mesh keeps an array's own layout"""
  devices = np.array(jax.devices()[:4])
  square = Mesh(devices.reshape(2, 2), ("p", "q"),
                axis_types=(AxisType.Auto,) * 2)
  x = jax.device_put(np.arange(2.), NamedSharding(square, P("p")))
  with jax.set_mesh(Mesh(devices, ("x",), axis_types=(AxisType.Auto,))):
    out = x * 2
  np.testing.assert_allclose(np.asarray(out), [0, 2])
  return str(out.sharding.spec)
