# SPDX-License-Identifier: Apache-2.0
"""checkify of programs with a shard_map and checks around it."""
import contextlib

import jax
from jax.experimental import checkify
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

REPORT = "shard_map: checkify"


def _shard_map(f, mesh=None):
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  return shard_map(f, mesh=mesh or _mesh(), in_specs=P("x"),
                   out_specs=P("x"))


def _mesh():
  return Mesh(np.array(jax.devices()[:4]), ("x",))


def _small(x):
  checkify.check(jnp.all(x < 5), "x is {x}", x=x[0])
  return x * 2


def _message(f, *expected, errors=checkify.user_checks):
  x = np.arange(8, dtype=np.float32)
  error, _ = jax.jit(checkify.checkify(f, errors=errors))(x)
  got = error.get() or ""
  for part in expected:
    assert part in got, f"expected {part!r} in {got!r}"
  return f"{len(got.splitlines())} devices report"


def index_check():
  """An index check in a shard_map (jax#26887)"""
  f = _shard_map(lambda x: x[x.astype(int)])
  return _message(f, "at mapped index 1: out-of-bounds indexing",
                  errors=checkify.index_checks)


def two_shard_maps():
  """Two checked shard_maps in one program (jax#26890)"""
  f = _shard_map(_small)
  return _message(lambda x: f(f(x)), "at mapped index 1: x is 4.0",
                  "at mapped index 3: x is 6.0")


def check_before_under_a_mesh():
  """A check before a shard_map under a context mesh (jax#40907)"""
  def f(x):
    checkify.check(jnp.all(x < 9), "before")
    return _shard_map(_small)(x)
  enter = getattr(jax, "set_mesh", None) or getattr(
      jax.sharding, "use_mesh", lambda _: contextlib.nullcontext())
  with enter(_mesh()):
    return _message(f, "at mapped index 2: x is 4.0")


def error_over_explicit_axes():
  """The error of a checked shard_map over Explicit axes is read"""
  mesh = jax.make_mesh((4,), ("x",),
                       axis_types=(jax.sharding.AxisType.Explicit,))
  f = _shard_map(_small, mesh)
  x = jax.device_put(np.arange(8, dtype=np.float32),
                     jax.sharding.NamedSharding(mesh, P("x")))
  error, _ = jax.jit(checkify.checkify(f))(x)
  try:
    got = error.get() or ""
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {str(e)[:100]}") from e
  assert "at mapped index 2: x is 4.0" in got, got
  return f"{len(got.splitlines())} devices report"
