# SPDX-License-Identifier: Apache-2.0
"""Whether psum_scatter takes a negative axis."""
import jax
import numpy as np

REPORT = "jax#11194"


def negative_axes():
    """psum_scatter along the last axis, as -1"""
    def scattered(x):
        return jax.lax.psum_scatter(x, "i", scatter_dimension=-1, tiled=True)
    x = np.arange(4.0, dtype=np.float32).reshape(1, 4)
    try:
        found = jax.vmap(scattered, axis_name="i")(x)
    except Exception as e:
        raise AssertionError(f"{type(e).__name__}: {e}") from e
    np.testing.assert_array_equal(found, x)
    return "as along the last axis"
