# SPDX-License-Identifier: Apache-2.0
"""jax#39288: jax.vmap over a ref, along another axis than its first."""
from jax import lax
import jax
from jax._src import core
import jax.numpy as jnp
import numpy as np

REPORT = "jax#39288"


def _content_after(f):
  """What a ref of 3 by 3 ones holds after f, mapped over its second axis."""
  new_ref = (getattr(core, "new_ref", None) or getattr(core, "array_ref", None)
             or core.mutable_array)
  ref = new_ref(jnp.ones((3, 3)))
  try:
    jax.vmap(f, in_axes=(1, 0))(ref, jnp.arange(3.))
  except (AttributeError, TypeError, ValueError) as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  return ref[...]


def scan_over_columns():
  """lax.scan adds to each column of a ref"""
  def f(ref, x):
    def body(c, y):
      ref[...] += x * y
      return c, None
    lax.scan(body, 0., jnp.array([1., 2.]))
  got = _content_after(f)
  want = 1. + 3. * np.tile(np.arange(3.), (3, 1))
  assert np.allclose(got, want), f"the ref holds {got.tolist()}"
  return "each column has its sum"


def while_loop_over_columns():
  """lax.while_loop writes to each column until its own predicate ends"""
  def f(ref, x):
    def body(c):
      ref[...] += 1.
      return c + 1.
    lax.while_loop(lambda c: c < 3., body, x)
  got = _content_after(f)
  want = 1. + np.tile(3. - np.arange(3.), (3, 1))
  assert np.allclose(got, want), f"the ref holds {got.tolist()}"
  return "each column has its number of trips"
