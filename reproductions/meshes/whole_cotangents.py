# SPDX-License-Identifier: Apache-2.0
"""The gradient by weights over no mesh, of a batch that is spread."""
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import numpy as np

REPORT = "jax#31798"


def gradient_by_kernel():
  """the gradient of a convolution by its kernel, of a batch over a mesh"""
  mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
  images = np.arange(128, dtype=np.float32).reshape(2, 1, 8, 8) / 64
  kernel = jnp.ones((1, 1, 3, 3))

  def loss(kernel, images):
    return jnp.sum(lax.conv(images, kernel, (1, 1), "VALID"))
  spread = jax.device_put(images, NamedSharding(mesh, P("x")))
  try:
    got = jax.jit(jax.grad(loss))(kernel, spread)
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:100]}") from e
  want = [[images[:, 0, i:i + 6, j:j + 6].sum() for j in range(3)]
          for i in range(3)]
  assert np.allclose(got[0, 0], want, rtol=1e-5), got
  return str(got.sharding.spec)
