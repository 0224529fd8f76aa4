# SPDX-License-Identifier: Apache-2.0
"""Where a program's values begin to vary, seen on its own lines."""
import contextlib
import io

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: devices that differ"


def show_varying():
  """jax.debug.show_varying prints lines, what varies, and inserted casts"""
  show = getattr(jax.debug, "show_varying", None)
  assert show is not None, "jax.debug has no show_varying"
  mesh = Mesh(np.array(jax.devices()[:2]), ("data",))

  def loss(w, x):
    y = w * x
    return lax.psum(y.sum(), "data")

  f = shard_map(loss, mesh=mesh, in_specs=(P(), P("data")), out_specs=P())
  with contextlib.redirect_stdout(io.StringIO()):
    said = str(show(jax.grad(f))(jnp.ones(2), jnp.ones((2, 2))))
  assert "cast to vary over 'data'" in said, said
  assert "summed over 'data': the gradient" in said, said
  return next(line for line in said.splitlines() if "cast to" in line).strip()
