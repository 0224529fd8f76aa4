# SPDX-License-Identifier: Apache-2.0
"""Reproduces jax#19656: eval_shape forgets the layout of results.

What a state looks like is asked of `jax.eval_shape`, and a checkpoint is read
by what it says. The sharding that the function itself gave a result is lost.
"""

import jax
import numpy as np

REPORT = "jax#19656"


def _layout():
  mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
  return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("x"))


def _init(x):
  return {"w": jax.lax.with_sharding_constraint(x * 2, _layout())}


def eval_shape():
  """jax.eval_shape of a function with with_sharding_constraint"""
  x = np.ones((len(jax.devices()), 2), np.float32)
  found = jax.eval_shape(_init, x)["w"].sharding
  assert found == jax.jit(_init)(x)["w"].sharding, f"sharding is {found}"
  return "its sharding"


def lowered():
  """out_info of the same function, lowered"""
  x = np.ones((len(jax.devices()), 2), np.float32)
  found = jax.jit(_init).lower(x).out_info["w"].sharding
  assert found == jax.jit(_init)(x)["w"].sharding, f"sharding is {found}"
  return "its sharding"
