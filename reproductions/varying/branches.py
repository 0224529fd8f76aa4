# SPDX-License-Identifier: Apache-2.0
"""Branches in shard_map: outputs that vary, and gradients."""

import numpy as np

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "jax#40823"

_MESH = Mesh(np.array(jax.devices()[:2]), ("x",))


def _claimed(f, x, returned):
  """out_specs=P() is refused for `f`, which returns `returned`."""
  claim = shard_map(f, mesh=_MESH, in_specs=P("x"), out_specs=P())
  try:
    jax.make_jaxpr(claim)(x)
  except ValueError as e:
    assert "out_specs" in str(e), e
    return "out_specs=P() is refused"
  raise AssertionError(
      f"out_specs=P() is accepted though devices return {returned}")


def cond_result():
  """cond's result varies over what its predicate does"""
  f = lambda x: lax.cond(x[0] > 2, lambda: 1., lambda: 2.)
  return _claimed(f, jnp.array([1., 3.]), "2 and 1")


def branches_differ():
  """cond takes branches that differ in what varies"""
  f = lambda x: lax.cond(lax.psum(x[0], "x") > 0, lambda: x,
                         lambda: jnp.zeros(1))
  f = shard_map(f, mesh=_MESH, in_specs=P("x"), out_specs=P("x"))
  out = jax.jit(f)(jnp.array([1., 3.]))
  assert out.tolist() == [1., 3.], out
  return "runs without an annotation"


def gradient():
  """the gradient of a parameter read in a branch is summed over devices"""
  def f(w, x):
    out = lax.cond(lax.axis_index("x") == 0, lambda: w * x[0],
                   lambda: w * x[0])
    return lax.psum(out, "x")
  w, x = jnp.float32(1.), jnp.array([2., 3.])
  run = shard_map(f, mesh=_MESH, in_specs=(P(), P("x")), out_specs=P())
  # Traced first: with the sum inside of the branch, this can deadlock.
  text = str(jax.make_jaxpr(jax.grad(run))(w, x))
  inside = text[text.rindex("cond["):]
  assert inside.count("psum") < 2, (
      "the sum over devices is inside of the branches")
  value = float(jax.jit(jax.grad(run))(w, x))
  assert value == 5., f"the gradient is {value}, not 5"
  return "the gradient is 5"
