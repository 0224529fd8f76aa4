# SPDX-License-Identifier: Apache-2.0
"""custom_jvp and custom_vjp in shard_map with check_rep=True."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.custom_derivatives import SymbolicZero
from jax.experimental.ode import odeint
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import smap

jax.config.parse_flags_with_absl()
eight_devices()


def vjp_rule(symbolic_zeros):
  @jax.custom_vjp
  def f(x, w):
    return jnp.sin(x) * w

  def fwd(x, w):
    if symbolic_zeros:
      x, w = x.value, w.value
    return jnp.sin(x) * w, (x, w)

  def bwd(res, ct):
    x, w = res
    return ct * jnp.cos(x) * w, jnp.sum(ct * jnp.sin(x))

  f.defvjp(fwd, bwd, symbolic_zeros=symbolic_zeros)
  return f


def jvp_rule(symbolic_zeros):
  @jax.custom_jvp
  def f(x, w):
    return jnp.sin(x) * w

  def jvp(primals, tangents):
    (x, w), (dx, dw) = primals, tangents
    t = jnp.zeros_like(x)
    if not isinstance(dx, SymbolicZero):
      t += jnp.cos(x) * w * dx
    if not isinstance(dw, SymbolicZero):
      t += jnp.sin(x) * dw
    return jnp.sin(x) * w, t

  f.defjvp(jvp, symbolic_zeros=symbolic_zeros)
  return f


@red('^NotImplementedError: Please open an issue')
class SymbolicZerosTest(jtu.JaxTestCase):

  @parameterized.named_parameters(('_vjp', vjp_rule), ('_jvp', jvp_rule))
  def test_forward_and_gradient(self, rule):
    f = rule(True)
    g = smap((P('i'), P()), P('i'))(lambda x, w: f(x, w) + f(x, 2.))
    x, w = np.linspace(0., 1., 4, dtype='float32'), np.float32(1.5)
    self.assertAllClose(g(x, w), np.sin(x) * 3.5, check_dtypes=False)
    self.assertAllClose(jax.jit(g)(x, w), np.sin(x) * 3.5, check_dtypes=False)
    for grad in (jax.grad(lambda x, w: g(x, w).sum(), (0, 1)),
                 jax.grad(lambda x, w: jax.jit(g)(x, w).sum(), (0, 1))):
      dx, dw = jax.jit(grad)(x, w)
      self.assertAllClose(dx, np.cos(x) * 3.5, rtol=1e-5, check_dtypes=False)
      self.assertAllClose(dw, np.sin(x).sum(), rtol=1e-5, check_dtypes=False)

  @parameterized.product(jit=[False, True])
  def test_flag_among_the_residuals(self, jit):
    f = jax.custom_vjp(lambda x, w: jnp.sin(x) * w)
    def fwd(x, w):
      return f(x.value, w.value), (x.value, w.value, w.perturbed)
    def bwd(res, ct):
      x, w, perturbed = res
      dw = jnp.sum(ct * jnp.sin(x)) if perturbed else jnp.zeros_like(w)
      return ct * jnp.cos(x) * w, dw
    f.defvjp(fwd, bwd, symbolic_zeros=True)
    g = smap((P('i'), P()), P('i'))(f)
    g = jax.jit(g) if jit else g
    x, w = np.linspace(0., 1., 4, dtype='float32'), np.float32(1.5)
    dx, dw = jax.grad(lambda x, w: g(x, w).sum(), (0, 1))(x, w)
    self.assertAllClose(dx, np.cos(x) * w, rtol=1e-5, check_dtypes=False)
    self.assertAllClose(dw, np.sin(x).sum(), rtol=1e-5, check_dtypes=False)
    only_x = jax.grad(lambda x: g(x, w).sum())(x)
    self.assertAllClose(only_x, dx)


@red(r'^NotImplementedError: No replication rule for while\. As a '
     'workaround, pass the `check_rep=False` argument')
class TypesTest(jtu.JaxTestCase):

  @parameterized.product(
      make=[vjp_rule, jvp_rule], two=[False, True], jit=[False, True])
  def test_of_what_is_the_same_in_a_loop_that_differs(self, make, two, jit):
    # The count starts the same everywhere, and the rule is applied to it.
    f = make(False)
    def run(x, w):
      def body(c):
        n, y = c
        return n + 1., y + f(n, w)
      return lax.while_loop(lambda c: c[0] < x[0], body, (0., 0.))[1]
    sizes = (2, 2) if two else (2,)
    g = smap((P('i'), P()), P('i'), sizes)(lambda x, w: run(x, w)[None])
    x, w = np.array([2., 4.], np.float32), np.float32(1.5)
    got = (jax.jit(g) if jit else g)(x, w)
    want = [1.5 * sum(np.sin(range(int(n)))) for n in x]
    self.assertAllClose(got, np.array(want), rtol=1e-5, check_dtypes=False)

  @red(r'^AssertionError: raised by shard_map\.process_custom_jvp_call')
  def test_tangent_of_another_type_than_the_primal(self):
    @jax.custom_jvp
    def second(x, y):
      return y * 1.
    second.defjvp(lambda p, t: (p[1] * 1., t[0] + t[1]))
    g = smap((P('i'), P()), P('i'))(
        lambda x, w: second(x, jnp.tile(w, 2)) * 2)
    x, w = np.arange(4., dtype=np.float32), np.ones((), np.float32)
    y, t = jax.jvp(lambda x: g(x, w), (x,), (x,))
    self.assertAllClose(y, np.full(4, 2.), check_dtypes=False)
    self.assertAllClose(t, 2 * x, check_dtypes=False)

  def test_closure_convert_finds_what_is_differentiated(self):
    def solve(x, w):
      return odeint(lambda y, t: -y * w, x, jnp.linspace(0., 1., 2),
                    rtol=1e-5)[-1]
    g = smap((P('i'), P()), P('i'))(solve)
    x, w = np.array([1., 2.], np.float32), np.float32(.7)
    self.assertAllClose(jax.jit(g)(x, w), x * np.exp(-w), rtol=1e-3,
                        check_dtypes=False)
    dw = jax.jit(jax.grad(lambda w: g(x, w).sum()))(w)
    self.assertAllClose(dw, -3 * np.exp(-w), rtol=1e-3, check_dtypes=False)


class GuardTest(jtu.JaxTestCase):

  def test_staged_on_two_axes(self):
    f = vjp_rule(False)
    g = jax.jit(smap((P('i'), P()), P(), (2, 2))(
        lambda x, w: lax.psum(f(x, w).sum(), 'i')))
    x, w = np.linspace(0., 1., 4, dtype='float32'), np.float32(1.5)
    dx, dw = jax.jit(jax.grad(g, (0, 1)))(x, w)
    self.assertAllClose(dx, np.cos(x) * 1.5, rtol=1e-5, check_dtypes=False)
    self.assertAllClose(dw, np.sin(x).sum(), rtol=1e-5, check_dtypes=False)

  def test_none_for_a_cotangent(self):
    @jax.custom_vjp
    def f(x, w):
      return jnp.sin(x)
    f.defvjp(lambda x, w: (jnp.sin(x), x),
             lambda x, ct: (ct * jnp.cos(x), None))
    g = smap((P('i'), P()), P('i'))(lambda x, w: f(x, w) + f(x, x))
    x, w = np.linspace(0., 1., 4, dtype='float32'), np.float32(1.5)
    dx, dw = jax.jit(jax.grad(lambda x, w: g(x, w).sum(), (0, 1)))(x, w)
    self.assertAllClose(dx, 2 * np.cos(x), rtol=1e-5, check_dtypes=False)
    self.assertAllClose(dw, 0., check_dtypes=False)

  @parameterized.named_parameters(('_vjp', vjp_rule), ('_jvp', jvp_rule))
  def test_forward_and_gradient(self, rule):
    f = rule(False)
    g = smap((P('i'), P()), P('i'))(f)
    x, w = np.linspace(0., 1., 4, dtype='float32'), np.float32(1.5)
    dx, dw = jax.grad(lambda x, w: g(x, w).sum(), (0, 1))(x, w)
    self.assertAllClose(dx, np.cos(x) * 1.5, rtol=1e-5, check_dtypes=False)
    self.assertAllClose(dw, np.sin(x).sum(), rtol=1e-5, check_dtypes=False)

  def test_bwd_with_a_collective(self):
    @jax.custom_vjp
    def mean_gradient(x):
      return x
    mean_gradient.defvjp(lambda x: (x, None),
                         lambda _, ct: (lax.pmean(ct, 'i'),))
    g = smap((P('i'), P('i')), P('i'))(lambda x, y: mean_gradient(x) * y)
    x, y = np.ones(2, np.float32), np.array([1., 3.], np.float32)
    dx = jax.jit(jax.grad(lambda x: g(x, y).sum()))(x)
    self.assertAllClose(dx, np.array([2., 2.]), check_dtypes=False)
