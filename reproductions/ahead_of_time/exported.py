# SPDX-License-Identifier: Apache-2.0
"""A call of an exported function, batched and differentiated (jax#28327)."""

import jax
import numpy as np

REPORT = "jax#28327"

_X = np.ones(3, np.float32)


def _through_a_file(f, vjp_order):
  from jax import export
  exported = export.export(jax.jit(f))(_X)
  return export.deserialize(exported.serialize(vjp_order=vjp_order)).call


def vmap():
  """jax.vmap of a call of an exported function"""
  call = _through_a_file(lambda x: x * x.sum(), 0)
  np.testing.assert_allclose(jax.vmap(call)(np.stack([_X, _X * 2])),
                             [[3] * 3, [12] * 3])
  return "one call for each element"


def jvp():
  """jax.jvp of a call of an exported function"""
  call = _through_a_file(lambda x: x * x, 2)
  _, rate = jax.jvp(call, (_X,), (_X,))
  np.testing.assert_allclose(rate, [2, 2, 2])
  return "from the vjp of the vjp"
