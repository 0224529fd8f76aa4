# SPDX-License-Identifier: Apache-2.0
"""Programs over Explicit axes that a later release refuses."""
import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P, reshard
import numpy as np

REPORT = "upgrading: Explicit axes"


def batch_of_one_side():
  """einsum with one side's batch spread, and in_specs other than the array's"""
  if not hasattr(jax, "explicit_reshard"):
    raise AssertionError("no option jax_explicit_reshard")
  mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)
  t = np.arange(64, dtype=np.float32).reshape(4, 4, 4)
  with jax.set_mesh(mesh), jax.explicit_reshard("allow"):
    a, b = reshard(jnp.asarray(t), P("x")), reshard(jnp.asarray(t), P())
    product = jnp.einsum("bij,bjk->bik", a, b)
    got = jax.shard_map(lambda v: v * 2, in_specs=P(None, "y"),
                        out_specs=P(None, "y"))(product)
  assert np.allclose(got, 2 * np.einsum("bij,bjk->bik", t, t)), got
  return "resharded where one placement is possible"


def indexed_batch():
  """vmap of jnp.linalg.inv over an Explicit axis (jax#33230)"""
  if not hasattr(jax, "explicit_reshard"):
    raise AssertionError("no option jax_explicit_reshard")
  mesh = jax.make_mesh((2,), ("x",), axis_types=(AxisType.Explicit,))
  a = 4 * np.eye(4, dtype=np.float32) + np.ones((2, 4, 4), np.float32)
  spread = jax.device_put(a, jax.sharding.NamedSharding(mesh, P("x")))
  with jax.explicit_reshard("allow"):
    got = jax.jit(jax.vmap(jnp.linalg.inv))(spread)
  assert np.allclose(got, np.linalg.inv(a), atol=1e-5), got
  return str(got.sharding.spec)
