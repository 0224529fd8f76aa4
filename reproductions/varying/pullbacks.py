# SPDX-License-Identifier: Apache-2.0
"""Backward rules that call the function of jax.vjp, where types grow later."""
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "jax#28193"


def _plain(w, z):
  return jnp.sin(w) * jnp.cos(z) + w * w


@jax.custom_vjp
def _with_rule(w, z):
  return _plain(w, z)


_with_rule.defvjp(lambda *args: jax.vjp(_plain, *args),
                  lambda pull, ct: pull(ct))


def _compare(program):
  """The gradient of a sum over devices, and of the same without a rule."""
  x, w = np.arange(4, dtype=np.float32), np.float32(.7)
  mesh = Mesh(np.array(jax.devices()[:4]), ("x",))
  total = shard_map(
      lambda w, x: lax.psum(program(_with_rule, w, x[0]), "x"),
      mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
  try:
    got = jax.jit(jax.grad(total))(w, x)
  except (TypeError, ValueError) as e:
    raise AssertionError(f"refused: {str(e)[:60]}") from e
  want = jax.jit(jax.grad(
      lambda w: sum(program(_plain, w, b) for b in x)))(w)
  assert np.allclose(got, want, rtol=1e-4), f"{got}, and {want} is right"


def branch():
  """the gradient of a custom_vjp in a branch that some devices take"""
  _compare(lambda h, w, x: lax.cond(x > 1.5, lambda: h(w, w + 1.),
                                    lambda: 3. * w))
  return "the gradient is that of each device, summed"


def loop():
  """the gradient of a custom_vjp in a loop whose carry varies in the end"""
  _compare(lambda h, w, x: lax.fori_loop(
      0, 3, lambda _, c: h(w, c) + .1 * x, .5))
  return "the gradient is right"
