# SPDX-License-Identifier: Apache-2.0
"""Random bits and others in shard_map that are taken for replicated."""
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:  # jax 0.6.0
  from jax.experimental.shard_map import shard_map

REPORT = "shard_map: primitives"
_MESH = Mesh(np.array(jax.devices()[:4]), ("x",))


def _must_refuse(f, in_specs, *args):
  claim = shard_map(f, mesh=_MESH, in_specs=in_specs, out_specs=P())
  try:
    out = jax.jit(claim)(*args)
  except ValueError as e:
    assert "replicat" in str(e), e
    return "the claim P() is refused"
  shards = [np.asarray(s.data).tolist() for s in out.addressable_shards]
  raise AssertionError(f"P() accepted; the devices hold {shards}")


def random_bits():
  """out_specs=P() of rng_bit_generator's bits from a key per device"""
  keys = np.arange(16, dtype=np.uint32).reshape(4, 4)
  return _must_refuse(
      lambda k: jax.lax.rng_bit_generator(k[0], (2,))[1], P("x"), keys)


def own_generator():
  """out_specs=P() of lax.rng_uniform, which each device draws by itself"""
  return _must_refuse(lambda x: x + jax.lax.rng_uniform(0., 1., (2,)), P(),
                      np.zeros(2, np.float32))


def hardware_generator_keys():
  """jax.random with an rbg key per device"""
  sample = lambda s: jax.random.uniform(jax.random.key(s, impl="rbg"), (3,))
  seeds = np.arange(4, dtype=np.uint32)
  f = shard_map(lambda s: sample(s[0])[None], mesh=_MESH, in_specs=P("x"),
                out_specs=P("x"))
  got = jax.jit(f)(seeds)
  assert np.array_equal(got, np.stack([sample(s) for s in seeds]))
  return "each device's own numbers"


def sinc():
  """jnp.sinc of a value that varies"""
  x = np.linspace(-1., 1., 8, dtype=np.float32)
  f = shard_map(jnp.sinc, mesh=_MESH, in_specs=P("x"), out_specs=P("x"))
  got = jax.jit(f)(x)
  assert np.allclose(got, np.sinc(x), atol=1e-6)
  return "as NumPy's"


def searchsorted_by_comparison():
  """jnp.searchsorted(method='compare_all') of values that vary"""
  a = np.array([.1, .3, .3, .8], np.float32)
  v = np.linspace(0., 1., 8, dtype=np.float32)
  f = shard_map(lambda a, v: jnp.searchsorted(a, v, method="compare_all"),
                mesh=_MESH, in_specs=(P(), P("x")), out_specs=P("x"))
  got = jax.jit(f)(a, v)
  assert np.array_equal(got, np.searchsorted(a, v))
  return "as NumPy's"
