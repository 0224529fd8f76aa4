# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Special values of floor division and remainder (jax#27606)."""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np

jax.config.parse_flags_with_absl()

SPECIAL = [0., 1., 1.5, 2., 3., 1e30, np.inf]
SPECIAL = np.array([s * v for v in SPECIAL for s in (1, -1)] + [np.nan],
                   np.float32)
X, Y = (a.ravel() for a in np.meshgrid(SPECIAL, SPECIAL))


def want_of(function):
  """What NumPy has, and the standard where an infinity is divided."""
  with np.errstate(all="ignore"):
    want = getattr(np, function)(X, Y)
    if function == "floor_divide":
      infinite = np.isinf(X) & np.isfinite(Y)
      want = np.where(infinite, X / Y, want)
      # With a divisor of zero NumPy has the quotient.
      want = np.where((Y == 0) & ~np.isnan(X) & (X != 0), X / Y, want)
  return want


class ArrayApiSpecialValuesTest(jtu.JaxTestCase):

  def check(self, got, want, where):
    got = np.asarray(got)
    wrong = where & ~((got == want) & (np.signbit(got) == np.signbit(want))
                      | np.isnan(got) & np.isnan(want))
    self.assertFalse(wrong.any(), "another special value: " + ", ".join(
        f"{x}, {y}: {g}, not {w}" for x, y, g, w in zip(
            X[wrong], Y[wrong], got[wrong], want[wrong])))

  @parameterized.parameters("remainder", "floor_divide")
  def test_against_numpy(self, function):
    where = (Y != 0) | (function == "floor_divide")
    for wrap in (lambda f: f, jax.jit, jax.vmap):
      f = wrap(getattr(jnp, function))
      self.check(f(jnp.asarray(X), jnp.asarray(Y)), want_of(function), where)

  def test_operators_and_divmod(self):
    x, y = jnp.asarray(X), jnp.asarray(Y)
    where = Y == Y
    for got in (x // y, jnp.divmod(x, y)[0], jax.jit(jnp.divmod)(x, y)[0]):
      self.check(got, want_of("floor_divide"), where)
    where = Y != 0
    for got in (x % y, jnp.divmod(x, y)[1], jnp.mod(x, y)):
      self.check(got, want_of("remainder"), where)

  @parameterized.parameters("float16", "bfloat16")
  def test_half_precision(self, dtype):
    where = (Y != 0) & (np.abs(X) != 1e30) & (np.abs(Y) != 1e30)
    for function in ("remainder", "floor_divide"):
      got = getattr(jnp, function)(jnp.asarray(X, dtype), jnp.asarray(Y, dtype))
      self.check(np.asarray(got).astype("float32"), want_of(function), where)

  @parameterized.parameters("float32", "float16", "bfloat16")
  def test_sign(self, dtype):
    for f in (jnp.sign, jax.jit(jnp.sign), jax.vmap(jnp.sign)):
      got = np.asarray(f(jnp.asarray(X, dtype))).astype("float32")
      self.check(got, np.sign(X), X == X)

  def test_complex_zero_has_no_sign(self):
    zeros = np.zeros(4, np.complex64)
    zeros.real, zeros.imag = [0., 0., -0., -0.], [0., -0., 0., -0.]
    for f in (jnp.sign, jax.jit(jnp.sign)):
      got = np.asarray(f(zeros))
      self.assertFalse((np.signbit(got.real) | np.signbit(got.imag)).any(),
                       f"another special value: {got}")

  @parameterized.parameters("int8", "uint8", "int16", "bool")
  def test_cumulative_prod_promotes_as_prod(self, dtype):
    if not hasattr(jnp, "cumulative_prod"):
      self.skipTest("this release has no cumulative_prod")
    x = jnp.ones(3, dtype)
    self.assertEqual(jnp.cumulative_prod(x).dtype, jnp.prod(x).dtype,
                     "Dtypes differ")
    self.assertEqual(jnp.cumulative_prod(x).dtype,
                     jnp.cumulative_sum(x).dtype, "Dtypes differ")


class ArrayApiSpecialValuesUnchangedTest(jtu.JaxTestCase):

  def test_numbers(self):
    rng = np.random.RandomState(0)
    x = rng.uniform(-9, 9, 500).astype(np.float32)
    y = rng.uniform(-3, 3, 500).astype(np.float32)
    np.testing.assert_allclose(x // y, np.floor_divide(x, y))
    np.testing.assert_allclose(jnp.remainder(x, y), np.remainder(x, y),
                               rtol=1e-5, atol=1e-6)
    for dtype in (np.int32, np.uint8):
      i = rng.randint(1, 90, 50).astype(dtype)
      j = rng.randint(1, 9, 50).astype(dtype)
      np.testing.assert_array_equal(jnp.remainder(i, j), np.remainder(i, j))
      np.testing.assert_array_equal(jnp.floor_divide(i, j), i // j)

  def test_minus_one_over_infinity_is_as_in_python(self):
    self.assertEqual(jnp.floor_divide(-1., jnp.inf), -1.)
    self.assertEqual(jnp.floor_divide(1., -jnp.inf), -1.)

  def test_sign_of_others(self):
    for x in (np.array([-3, 0, 2]), np.array([3, 0], np.uint8),
              np.array([1 + 1j, 0j], np.complex64)):
      np.testing.assert_allclose(jnp.sign(x), np.sign(x), rtol=1e-6)
    self.assertTrue(jnp.isnan(jnp.sign(jnp.nan)))
    self.assertEqual(jax.grad(jnp.sign)(2.), 0.)

  def test_derivatives(self):
    # At a multiple of the divisor too, where the value is a signed zero.
    for x, y in ((4., 2.), (-4., 2.), (4., -2.), (5.5, 2.), (-5.5, 2.),
                 (0., 3.), (-0., 3.)):
      for wrap in (lambda f: f, jax.jit):
        dx, dy = wrap(jax.grad(jnp.remainder, (0, 1)))(x, y)
        self.assertEqual(dx, 1., (x, y))
        # Derivative of x - y * trunc(x / y), or of that plus y.
        quotients = {-np.trunc(x / y), -np.floor(x / y)}
        self.assertIn(float(dy), quotients, (x, y))
        self.assertEqual(wrap(jax.grad(jnp.floor_divide, (0, 1)))(x, y),
                         (0., 0.))


if __name__ == "__main__":
  absltest.main(testLoader=jtu.JaxTestLoader())
