# SPDX-License-Identifier: Apache-2.0
"""Composites in functions that are exported for two platforms (jax#40486)."""

from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red

jax.config.parse_flags_with_absl()

# What pristine JAX says.
NOT_VERIFIED = '^ValueError: Cannot lower jaxpr with verifier errors'

X = np.arange(4, dtype=np.float32)
PLATFORMS = {'platforms': ('cpu', 'tpu')}


def composite(f, name='test.composite'):
  return lax.composite(f, name)


class ExportedCompositesTest(jtu.JaxTestCase):

  def exported(self, f, *args, **options):
    exp = export.export(jax.jit(f), **options)(*args)
    self.assertIn('stablehlo.composite', exp.mlir_module())
    return export.deserialize(exp.serialize())

  @red(NOT_VERIFIED)
  def test_two_platforms(self):
    f = composite(lambda x: jnp.sin(x) + 1)
    self.assertAllClose(self.exported(f, X, **PLATFORMS).call(X), np.sin(X) + 1)

  @red(NOT_VERIFIED)
  def test_two_arguments_and_results(self):
    f = composite(lambda x, y: (x * y, x - y))
    product, difference = self.exported(f, X, X + 3, **PLATFORMS).call(X, X + 3)
    self.assertArraysEqual(product, X * (X + 3))
    self.assertArraysEqual(difference, np.full(4, -3, np.float32))

  @red(NOT_VERIFIED)
  def test_one_within_another(self):
    inner = composite(lambda x: x * 2, 'test.inner')
    f = composite(lambda x: inner(x) + inner(x + 1), 'test.outer')
    self.assertArraysEqual(
        self.exported(f, X, **PLATFORMS).call(X), 4 * X + 2)

  @red(NOT_VERIFIED)
  def test_in_a_loop(self):
    f = composite(lambda x: x + 1)
    looped = lambda x: lax.fori_loop(0, 3, lambda i, x: f(x), x)
    self.assertArraysEqual(
        self.exported(looped, X, **PLATFORMS).call(X), X + 3)

  @red(NOT_VERIFIED)
  def test_depends_on_the_platform(self):
    f = composite(lambda x: lax.platform_dependent(
        x, cpu=lambda x: x + 1, default=lambda x: x + 2))
    self.assertArraysEqual(self.exported(f, X, **PLATFORMS).call(X), X + 1)

  @parameterized.parameters({'platforms': ('cpu',)}, {})
  def test_one_platform(self, **options):
    f = composite(lambda x: jnp.sin(x) + 1)
    self.assertAllClose(self.exported(f, X, **options).call(X), np.sin(X) + 1)

  def test_lowered(self):
    f = composite(lambda x: jnp.sin(x) + 1)
    text = jax.jit(f).lower(X).as_text()
    self.assertIn('stablehlo.composite "test.composite" %arg0 {', text)
    self.assertAllClose(jax.jit(f)(X), np.sin(X) + 1)
