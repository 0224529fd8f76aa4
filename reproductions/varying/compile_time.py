# SPDX-License-Identifier: Apache-2.0
"""diffrax#738, without the library."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "diffrax#738"


def compile_time():
  """ensure_compile_time_eval in shard_map, under jax.set_mesh"""
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))

  def scale(x):
    with jax.ensure_compile_time_eval():
      factor = float(jnp.sum(jnp.arange(3.)))
    return x * factor

  set_mesh = getattr(jax, "set_mesh", None) or jax.sharding.use_mesh
  f = jax.jit(shard_map(scale, mesh=mesh, in_specs=P("x"), out_specs=P("x")))
  try:
    with set_mesh(mesh):
      got = f(np.arange(4, dtype=np.float32))
  except (AssertionError, ZeroDivisionError) as e:
    raise AssertionError(f"refused: {type(e).__name__} {e}") from e
  assert np.allclose(got, [0, 3, 6, 9]), got
  return "evaluated"
