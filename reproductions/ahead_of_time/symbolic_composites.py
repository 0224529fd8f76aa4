# SPDX-License-Identifier: Apache-2.0
"""A composite whose size is known only when it is called."""
import jax
from jax import export
import jax.numpy as jnp
import numpy as np

REPORT = "jax#40486"


def symbolic_composites():
  """an exported composite of a symbolic size can be called"""
  f = jax.lax.composite(lambda x: jnp.sin(x) + x.shape[0], "my.composite")
  exp = export.export(jax.jit(f))(
      jax.ShapeDtypeStruct(export.symbolic_shape("a"), np.float32))
  got = exp.call(np.zeros(3, np.float32))
  np.testing.assert_array_equal(got, [3, 3, 3])
  return str(got.tolist())
