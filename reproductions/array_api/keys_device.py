# SPDX-License-Identifier: Apache-2.0
"""Whether the device of PRNG keys over several devices is one for arrays."""
import jax
import numpy as np

REPORT = "jax#22597"


def device_of_keys():
  """an array of the keys' shape can be put on keys.device"""
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))
  keys = jax.device_put(jax.random.split(jax.random.key(0), 4), sharding)
  try:
    placed = jax.device_put(np.arange(4), keys.device)
  except ValueError as e:
    raise AssertionError(f"refused: {e}") from e
  assert placed.sharding.is_equivalent_to(sharding, 1), placed.sharding
  return "placed like the keys"
