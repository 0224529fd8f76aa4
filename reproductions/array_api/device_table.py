# SPDX-License-Identifier: Apache-2.0
"""Whether device= commits, refuses and is mapped as it says (jax#27606)."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np

REPORT = "jax#27606"


def _split():
  return NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))


def commits():
  """asarray(x, device=d) commits an x that already is on d"""
  d = jax.devices()[0]
  y = jnp.asarray(jnp.arange(3.), device=d)
  assert y.committed, "uncommitted: a later operation may move it"
  return "committed"


def rank():
  """zeros((), device=sharding of a dimension) says what is wrong"""
  try:
    jnp.zeros((), device=_split())
  except ValueError as e:
    assert "of shape ()" in str(e), f"ValueError: {e}"
    return str(e)[:60]
  except IndexError as e:
    raise AssertionError(f"IndexError: {e}") from e
  raise AssertionError("accepted")


def linspace():
  """linspace refuses a sharding that does not divide it, as arange does"""
  try:
    y = jnp.linspace(0, 1, len(jax.devices()) + 1, device=_split())
  except ValueError as e:
    assert "divi" in str(e), f"ValueError: {e}"
    return str(e)[:60]
  raise AssertionError(f"replicated silently: {y.sharding}")


def without_a_copy():
  """asarray(x, device=elsewhere, copy=False) is refused"""
  try:
    jnp.asarray(jnp.arange(3.), device=jax.devices()[1], copy=False)
  except ValueError as e:
    assert "copy=False" in str(e), f"ValueError: {e}"
    return str(e)[:60]
  raise AssertionError("copied")
