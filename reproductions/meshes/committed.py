# SPDX-License-Identifier: Apache-2.0
"""A constraint to the device on which an array is already."""
import jax
import jax.numpy as jnp

REPORT = "with_sharding_constraint outside of jit"


def committed():
  """with_sharding_constraint commits an array to one device"""
  where = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  x = jax.lax.with_sharding_constraint(jnp.ones(3), where)
  assert x.committed, "the array is uncommitted"
  return "committed"
