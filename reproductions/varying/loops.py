# SPDX-License-Identifier: Apache-2.0
"""Loops in shard_map: results that vary, and carries that become varying."""

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


def while_result():
  """while_loop's result varies over what its predicate does"""
  f = lambda x: lax.while_loop(lambda c: c < x[0], lambda c: c + 1., 0.)
  error = _refused(_sharded(f, P()), jnp.array([1., 3.]))
  assert error is None or "out_specs" in str(error), error
  assert error is not None, (
      "out_specs=P() is accepted though devices return 1 and 3")
  return "out_specs=P() is refused"


def fori_bound():
  """fori_loop's result varies over what its bound does"""
  f = lambda x: lax.fori_loop(0, x[0], lambda i, c: c + 1, 0)
  error = _refused(_sharded(f, P()), jnp.array([1, 3]))
  assert error is None or "out_specs" in str(error), error
  assert error is not None, (
      "out_specs=P() is accepted though devices return 1 and 3")
  return "out_specs=P() is refused"


def scan_carry():
  """scan takes a carry that starts replicated and becomes varying"""
  f = lambda x: lax.scan(lambda c, a: (c + a, c), 0., x)[1]
  out = jax.jit(_sharded(f, P("x")))(jnp.arange(4.))
  assert out.tolist() == [0., 0., 0., 2.], out
  return "runs without an annotation"


def while_carry():
  """while_loop takes a carry that starts replicated and becomes varying"""
  body = lambda s: (s[0] + 1, s[1] + jnp.sum(s[2]), s[2])
  f = lambda x: lax.while_loop(lambda s: s[0] < 2, body, (0, 0., x))[1][None]
  out = jax.jit(_sharded(f, P("x")))(jnp.arange(4.))
  assert out.tolist() == [2., 10.], out
  return "runs without an annotation"
