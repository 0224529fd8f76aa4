# SPDX-License-Identifier: Apache-2.0
"""Whether a scan from 0. is batched over an Explicit mesh axis."""
import jax
import numpy as np

REPORT = "jax#29637"


def scan_from_zero():
    """vmap of a scan from 0., over an Explicit axis"""
    from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
    mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
    rows = np.arange(8.0, dtype=np.float32).reshape(4, 2)

    def total(row):
        return jax.lax.scan(lambda c, a: (c + a, None), 0.0, row)[0]
    spread = jax.device_put(rows, NamedSharding(mesh, P("x")))
    try:
        sums = jax.jit(jax.vmap(total))(spread)
    except ValueError as e:
        raise AssertionError(f"refused: {e}") from e
    np.testing.assert_array_equal(sums, rows.sum(1))
    return "the rows' sums"
