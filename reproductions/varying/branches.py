# SPDX-License-Identifier: Apache-2.0
"""Branches in shard_map: outputs that vary, and gradients."""

import numpy as np

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

REPORT = "jax#40823"


def _sharded(f, out_specs, in_specs=None, shape=(2,), names=("x",)):
  shard_map = getattr(jax, "shard_map", None)
  if shard_map is None:
    from jax.experimental.shard_map import shard_map
  devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
  return shard_map(f, mesh=Mesh(devices, names),
                   in_specs=P("x") if in_specs is None else in_specs,
                   out_specs=out_specs)


def _refused(f, *args):
  """The error that tracing f raises, or None."""
  try:
    jax.make_jaxpr(f)(*args)
  except ValueError as e:  # that of out_specs; another error is no refusal
    return e


def cond_result():
  """cond's result varies over what its predicate does"""
  f = lambda x: lax.cond(x[0] > 2, lambda: 1., lambda: 2.)
  error = _refused(_sharded(f, P()), jnp.array([1., 3.]))
  assert error is None or "out_specs" in str(error), error
  assert error is not None, (
      "out_specs=P() is accepted though devices return 2 and 1")
  return "out_specs=P() is refused"


def branches_differ():
  """cond takes branches that differ in what varies"""
  f = lambda x: lax.cond(lax.psum(x[0], "x") > 0, lambda: x,
                         lambda: jnp.zeros(1))
  out = jax.jit(_sharded(f, P("x")))(jnp.array([1., 3.]))
  assert out.tolist() == [1., 3.], out
  return "runs without an annotation"


def gradient():
  """the gradient of a parameter read in a branch is summed over devices"""
  def f(w, x):
    out = lax.cond(lax.axis_index("x") == 0, lambda: w * x[0],
                   lambda: w * x[0])
    return lax.psum(out, "x")
  w, x = jnp.float32(1.), jnp.array([2., 3.])
  run = _sharded(f, P(), (P(), P("x")))
  # Traced first: with the sum inside of the branch, this can deadlock.
  text = str(jax.make_jaxpr(jax.grad(run))(w, x))
  inside = text[text.rindex("cond["):]
  assert inside.count("psum") < 2, (
      "the sum over devices is inside of the branches")
  value = float(jax.jit(jax.grad(run))(w, x))
  assert value == 5., f"the gradient is {value}, not 5"
  return "the gradient is 5"
