# SPDX-License-Identifier: Apache-2.0
"""Calls of exported composites of symbolic sizes (jax#40486)."""
from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NOT_REFINED = '^ValueError: Error refining shapes'
NOT_VERIFIED = '^ValueError: Cannot lower jaxpr with verifier errors'

inner = lax.composite(lambda x: x * x.shape[0], 'test.inner')
PROGRAMS = {
    'plain': (lax.composite(lambda x: jnp.sin(x) + 1, 'test.plain'),
              lambda x: np.sin(x) + 1),
    'size': (inner, lambda x: x * len(x)),
    'scalar': (lax.composite(jnp.sum, 'test.sum'), np.sum),
    'two': (lambda x: jnp.stack(
        lax.composite(lambda x, y: (x - y, x * y), 'test.two')(x, x + 1)),
            lambda x: np.stack([0 * x - 1, x * (x + 1)])),
    'nested': (lax.composite(lambda x: inner(x) + inner(x + 1), 'test.outer'),
               lambda x: len(x) * (2 * x + 1)),
    'loop': (lambda x: lax.fori_loop(0, 3, lambda i, x: inner(x), x),
             lambda x: x * len(x) ** 3),
    'attribute': (
        lambda x: lax.composite(
            lambda x, *, axis: jnp.cumsum(x, axis), 'test.sums')(x, axis=0),
        np.cumsum),
    'beside': (  # no size in it, but in what its decomposition calls
        lambda x: lax.composite(
            lambda y: y + inner(jnp.ones(x.shape)).sum(), 'test.beside')(x[0]),
        lambda x: x[0] + np.float32(len(x) ** 2)),
    'called': (  # or in a function that is no composite's
        lambda x: lax.composite(jax.jit(
            lambda y: y + jnp.ones(x.shape).sum()), 'test.called')(x[0]),
        lambda x: x[0] + np.float32(len(x))),
}
ONE, TWO = {}, {'platforms': ['cpu', 'tpu']}


def numbers(n):
  return np.arange(1, n + 1, dtype=np.float32)


def exported(f, size='a', **options):
  spec = jax.ShapeDtypeStruct(export.symbolic_shape(size), np.float32)
  return export.deserialize(
      export.export(jax.jit(f), **options)(spec).serialize())


class SymbolicCompositesTest(jtu.JaxTestCase):

  @red(NOT_REFINED, bases='>=0.12')
  @red(NOT_VERIFIED, bases='<0.12')
  @parameterized.product(program=[*PROGRAMS], options=[ONE, TWO])
  def test_called(self, program, options):
    f, expected = PROGRAMS[program]
    exp = exported(f, **options)
    self.assertIn('stablehlo.composite', exp.mlir_module())
    for n in (1, 4):
      self.assertAllClose(exp.call(numbers(n)), expected(numbers(n)),
                          check_dtypes=False, rtol=1e-5)

  @red(NOT_REFINED, bases='>=0.12')
  @red(NOT_VERIFIED, bases='<0.12')
  def test_called_in_a_program(self):
    call = exported(PROGRAMS['nested'][0]).call
    x = numbers(3)
    self.assertAllClose(jax.jit(lambda x: call(x) + call(2 * x))(x),
                        3 * (6 * x + 2))
    lowered = jax.jit(call).lower(x)
    text = lowered.as_text()
    self.assertIn('stablehlo.composite', text)
    self.assertAllClose(lowered.compile()(x), 3 * (2 * x + 1))
    self.assertEqual(lowered.as_text(), text)

  @red(NOT_REFINED, bases='>=0.12')
  @red(NOT_VERIFIED, bases='<0.12')
  def test_called_and_exported_again(self):
    call = exported(PROGRAMS['nested'][0]).call
    again = exported(lambda x: call(x)[:1], 'b')
    self.assertAllClose(again.call(numbers(5)), np.float32([15]))

  @red(NOT_REFINED, bases='>=0.12')
  @red(NOT_VERIFIED, bases='<0.12')
  @parameterized.parameters(((8,), 'x'), ((4, 2), ('x', 'y')), ((1,), 'x'))
  def test_called_on_devices(self, shape, axes):
    devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
    spread = NamedSharding(
        Mesh(devices, ('x', 'y')[:len(shape)]), P(axes))
    f = jax.jit(inner, in_shardings=spread)
    exp = export.export(f)(
        jax.ShapeDtypeStruct(export.symbolic_shape('8*a'), np.float32))
    x = numbers(16)
    self.assertAllClose(exp.call(jax.device_put(x, spread)), 16 * x)

  @red(NOT_VERIFIED, bases='<0.12')
  def test_of_a_known_size(self):
    f = lambda x: x + lax.composite(lambda x: x * 2, 'test.known')(
        jnp.ones(3)).sum()
    exp = exported(f)
    self.assertAllClose(exp.call(numbers(2)), numbers(2) + 6)

  def test_lowered(self):
    f = jax.jit(PROGRAMS['nested'][0])
    lowered = f.lower(numbers(3))
    self.assertEqual(lowered.as_text().count('stablehlo.composite'), 3)
    self.assertAllClose(lowered.compile()(numbers(3)), 3 * (2 * numbers(3) + 1))
