# SPDX-License-Identifier: Apache-2.0
"""jax.lax.pvary on the base releases with check_rep."""
import inspect

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.experimental import shard_map as shard_map_lib
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import smap

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NO_PVARY = "^AttributeError: .*has no attribute 'pvary'"


X = np.array([1., 2., 3., 4.], np.float32)


@red(NO_PVARY, api_missing=True)
class PvaryTest(jtu.JaxTestCase):

  def test_signature(self):
    self.assertEqual(list(inspect.signature(lax.pvary).parameters),
                     ['x', 'axis_name'])

  @parameterized.named_parameters(('_eager', lambda f: f), ('_jit', jax.jit))
  def test_value_and_gradient(self, transform):
    for check in (True, False):
      f = smap((P('i'), P()), P('i'), check_rep=check)(
          lambda x, w: x * lax.pvary(w, 'i'))
      self.assertAllClose(transform(f)(X, 3.), 3 * X, check_dtypes=False)
      grad = transform(jax.grad(lambda w: f(X, w).sum()))(3.)
      self.assertAllClose(grad, 10., check_dtypes=False)

  def test_transpose_is_a_psum(self):
    f = smap((P('i'), P()), P('i'))(lambda x, w: jax.grad(
        lambda w: jnp.sum(x * lax.pvary(w, 'i')))(w)[None])
    self.assertAllClose(jax.jit(f)(X, 3.), np.full(2, 10.), check_dtypes=False)
    self.assertAllClose(f(X, 3.), np.full(2, 10.), check_dtypes=False)

  def test_result_varies(self):
    f = smap(P(), P())(lambda w: lax.pvary(w, 'i'))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(f)(1.)

  def test_type_of_the_cast_itself(self):
    # Where a rewrite has not replaced it.
    eqn, = jax.make_jaxpr(lambda w: lax.pvary(w, 'i'),
                          axis_env=[('i', 4), ('j', 2)])(1.).eqns
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ('i', 'j'))
    rule = shard_map_lib._check_rules[eqn.primitive]
    self.assertEqual(rule(mesh, {'i', 'j'}, **eqn.params), {'j'})

  def test_one_axis_of_two(self):
    f = lambda spec: smap((P('i', 'j'), P()), (P('i', 'j'), spec), (2, 2))(
        lambda x, w: (x, lax.pvary(w, 'i')[None]))
    x = np.arange(4.).reshape(2, 2)
    self.assertAllClose(jax.jit(f(P('i')))(x, 3.)[1], np.full(2, 3.),
                        check_dtypes=False)
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(f(P('j')))(x, 3.)

  def test_several_axes_and_a_pytree(self):
    @smap((P('i', 'j'), P()), P('i', 'j'), (2, 2))
    def f(x, w):
      w = lax.pvary({'a': w, 'b': [w * 2]}, ('i', 'j'))
      return x * w['a'] + w['b'][0]
    x = np.arange(4., dtype=np.float32).reshape(2, 2)
    self.assertAllClose(jax.jit(f)(x, 3.), 3 * x + 6, check_dtypes=False)
    grad = jax.jit(jax.grad(lambda w: f(x, w).sum()))(3.)
    self.assertAllClose(grad, 6. + 8., check_dtypes=False)

  def test_in_control_flow(self):
    @smap((P('i'), P()), P('i'))
    def f(x, w):
      w = lax.scan(lambda c, _: (jax.jit(lambda c: lax.pvary(c, 'i'))(c), None),
                   w, None, length=2)[0]
      return lax.cond(x[0] > 1, lambda: x * lax.pvary(w, 'i'), lambda: x)
    self.assertAllClose(jax.jit(f)(X, 3.), np.array([1., 2., 9., 12.]),
                        check_dtypes=False)
    grad = jax.jit(jax.grad(lambda w: f(X, w).sum()))(3.)
    self.assertAllClose(grad, 7., check_dtypes=False)

  def test_vmap(self):
    f = smap(P('i'), P('i'))(
        lambda x: jax.vmap(lambda w: lax.pvary(w, 'i') + x)(jnp.ones(2)).sum(0))
    self.assertAllClose(jax.jit(f)(X), 2 * X + 2, check_dtypes=False)
    g = jax.vmap(lambda x: lax.pvary(x, 'v') * 2, axis_name='v')
    self.assertAllClose(g(X), 2 * X, check_dtypes=False)

  def test_no_axes(self):
    self.assertIs(lax.pvary(X, ()), X)

  def test_nothing_at_run_time(self):
    f = lambda cast: jax.jit(smap((P('i'), P()), P('i'))(
        lambda x, w: x * cast(w))).lower(X, 3.).compile().as_text()
    strip = lambda text: [
        l.split(', metadata')[0] for l in text.split('\n')[1:]]
    self.assertEqual(strip(f(lambda w: lax.pvary(w, 'i'))),
                     strip(f(lambda w: w)))


@red(NO_PVARY, api_missing=True)
class ArgumentsTest(jtu.JaxTestCase):

  def call(self, axis_name):
    return jax.jit(smap(P('i'), P('i'))(lambda x: lax.pvary(x, axis_name)))(X)

  def test_unbound_axis(self):
    with self.assertRaisesRegex(NameError, "jax.lax.pvary: unbound.*'q'.*'i'"):
      self.call('q')
    with self.assertRaisesRegex(NameError, "unbound axis name: 'i'"):
      lax.pvary(X, 'i')

  def test_list(self):
    with self.assertRaisesRegex(TypeError, r"got \['i'\] of type list"):
      self.call(['i'])

  def test_twice(self):
    with self.assertRaisesRegex(ValueError, 'each mesh axis once'):
      self.call(('i', 'i'))

  def test_varying_already(self):
    self.assertAllClose(self.call('i'), X, check_dtypes=False)
