# SPDX-License-Identifier: Apache-2.0
"""Where devices differ and should not, found by the program itself."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: devices that differ"


def check_replication():
  """jax.debug.check_replication names the first place where devices differ"""
  check = getattr(jax.debug, "check_replication", None)
  assert check is not None, "jax.debug has no check_replication"
  mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
  f = shard_map(lambda w: w * 2, mesh=mesh, in_specs=P(), out_specs=P())
  assert (check(f)(jnp.ones(3)) == 2).all()
  held = [jax.device_put(np.full(3, n, np.float32), d)
          for n, d in enumerate(mesh.devices)]
  w = jax.make_array_from_single_device_arrays(
      (3,), NamedSharding(mesh, P()), held)
  try:
    check(f)(w)
  except jax.debug.ReplicationError as e:
    assert "0 on data=0; 1 on data=1" in str(e), e
    return str(e).splitlines()[0]
  raise AssertionError("copies that differ were not found")
