# SPDX-License-Identifier: Apache-2.0
"""Collectives that only some of their devices reach."""

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


def _refused(f, x):
  """The error that tracing f raises, or None."""
  f = shard_map(f, mesh=_MESH, in_specs=P("x"), out_specs=P("x"))
  try:
    jax.make_jaxpr(f)(x)
  except TypeError as e:  # upstream's, of the branches' types
    raise AssertionError(f"refused for other reasons: {e}") from e
  except ValueError as e:
    return e


def psum_in_cond():
  """a psum in a branch that some devices don't take is refused"""
  f = lambda x: lax.cond(x[0] > 2, lambda: lax.psum(x, "x"), lambda: x)
  error = _refused(f, jnp.array([1., 3.]))
  # The branches' types differ as well, so upstream may refuse for that.
  assert error is not None and "psum" in str(error), (
      f"not refused for the psum: {error}")
  return "refused, naming psum"


def pmax_in_while():
  """a pmax in a loop that devices leave at different trips is refused"""
  f = lambda x: lax.while_loop(
      lambda c: c[0] < x[0], lambda c: c + 0. * x + lax.pmax(c, "x"), x)
  error = _refused(f, jnp.array([1., 3.]))
  assert error is not None, "traced without a word"
  assert "pmax" in str(error), error
  return "refused, naming pmax"
