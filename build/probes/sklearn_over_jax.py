# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin that puts jax.numpy into scikit-learn's array API tests.

Loaded with `-p sklearn_over_jax` in the Python under test. scikit-learn names
the namespaces that its tests know, and JAX's isn't one: jax.numpy stands in for
all of them here. With 64 bits, as the tests' tolerances ask for. Those that
assign to elements fail, on any JAX.
"""

from sklearn.utils import _array_api

import jax


def _jax_alone(include_numpy_namespaces=True):
  del include_numpy_namespaces
  yield "jax.numpy"


_array_api.yield_namespaces = _jax_alone
jax.config.update("jax_enable_x64", True)
