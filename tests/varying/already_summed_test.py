# SPDX-License-Identifier: Apache-2.0
"""psum and pmean of gradients that shard_map has summed already: a warning."""
import inspect
import re
import warnings

from absl.testing import parameterized
import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import UNCHECKED, shard_map
from varying.testing.common import MESHES
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit
from varying.testing.common import ships

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_COTANGENT = ('^ValueError: unexpected JAX type .* for argument to vjp '
                   'function')
NO_OPTION = ('^AttributeError: Unrecognized config option: '
             'jax_shard_map_summed_gradients')
NO_WARNING = '^AssertionError: UserWarning not triggered'

MODULE = 'jax._src.varying.autodiff.already_summed'
W = jnp.array([.5, -.3])
X = jnp.arange(8.).reshape(4, 2) / 4.


def loss(w, x):
  return jnp.sum(jnp.tanh(x @ w) ** 2)


def run(f, kind='1d', jit=True):
  """`f` of replicated weights and a device's row, its result replicated."""
  mesh = make_mesh(*MESHES[kind])
  return maybe_jit(jit)(shard_map(
      f, mesh=mesh, in_specs=(P(), P(mesh.axis_names)), out_specs=P()))(W, X)


# What each device computes; those of SUMMED sum over 'x' what is a sum over 'x'
# already, in the line that says so.


def plain(w, x):
  return lax.psum(jax.grad(loss)(w, x), 'x')  # twice


def shaped_and_scaled(w, x):
  g = jax.value_and_grad(loss)(w, x)[1]
  return lax.psum((-g[None] * .1).reshape(2) / 2., ('x',))  # twice


def staged(w, x):
  return lax.psum(jax.jit(jax.grad(loss))(w, x), 'x')  # twice


def accumulated(w, x):
  g = jax.grad(loss)(w, x) + jax.grad(loss)(w, x[::-1])
  return jax.tree.map(lambda g: lax.psum(g, 'x'), {'w': g})['w']  # twice


def of_a_mean(w, x):
  g = jax.grad(lambda w: lax.pmean(loss(w, x), 'x'))(w)
  return lax.psum(g, 'x')  # twice


def averaged(w, x):
  return lax.pmean(jax.grad(loss)(w, x), 'x')  # twice


def mapped(w, x):
  ws = jnp.stack([w, w * 2.])
  gs = jax.vmap(jax.grad(loss), (0, None))(ws, x)
  return jax.vmap(lambda g: lax.psum(g, 'x'))(gs).sum(0)  # twice


def differentiated(w, x):
  inner = lambda w: jnp.sum(lax.psum(jax.grad(loss)(w, x), 'x'))  # twice
  return jax.grad(inner)(w)


SUMMED = [plain, shaped_and_scaled, staged, accumulated, averaged, mapped,
          differentiated]


def own_part(w, x):
  return lax.psum(jax.grad(loss)(cast(w, ['x']), x), 'x')


def constants(w, x):
  n = lax.psum(1, 'x') + lax.psum(jnp.ones(()), 'x') + lax.pmean(2., 'x')
  return w * n


def replicated(w, x):
  return lax.psum(w, 'x') + lax.pmean(jnp.sin(w), 'x')


def loss_averaged_before(w, x):
  g = jax.grad(lambda w: lax.pmean(loss(w, x), 'x'))(w)
  return lax.pmean(g, 'x')


def weights_kept_alike(w, x):
  return lax.pmean(w - .1 * jax.grad(loss)(w, x), 'x')


def norm(w, x):
  g = jax.grad(loss)(w, x)
  return lax.pmax(jnp.sqrt(jnp.sum(g * g)), 'x')


def only_the_value(w, x):
  value, g = jax.value_and_grad(loss)(w, x)
  return g + lax.psum(value, 'x')


FINE = [own_part, weights_kept_alike, norm, only_the_value]


def said(f, kind='1d', jit=True):
  """The warnings of ours while a program is traced, and its result."""
  # With 'y', what varies along it is summed over by the test.
  g = f
  if kind == '2d':
    g = lambda w, x: f(w, lax.psum(x, 'y'))
  with warnings.catch_warnings(record=True) as found:
    warnings.simplefilter('always')
    out = run(g, kind, jit)
  return [str(w.message) for w in found
          if 'already summed over' in str(w.message)], out


class AlreadySummedTest(MeshTestCase):

  def setUp(self):
    super().setUp()
    if ships(MODULE):
      from jax._src.varying.autodiff import already_summed
      already_summed._said.clear()

  def warned(self, f, kind='1d', jit=True):
    messages, out = said(f, kind, jit)
    if not messages:
      self.fail('UserWarning not triggered')
    return messages, out

  # There vmap hands a sum's groups on to one that takes none.
  @red(r'^TypeError: _psum_invariant_abstract_eval\(\) got an unexpected '
       'keyword', bases='>=0.8.1,<0.9', cases=['mapped'])
  @red(NO_WARNING, bases='>=0.6.1')
  @red(OTHER_COTANGENT, bases='<0.6.1')
  @parameterized.parameters(
      *((f, '1d') for f in SUMMED), (plain, '2d'), (averaged, '2d'))
  def test_warns(self, f, kind):
    self.check_warning(f, kind)

  @red(NO_WARNING, bases='>=0.6.1')
  @red(NO_WARNING, bases='<0.6.1')
  def test_warns_though_the_loss_was_reduced(self):
    self.check_warning(of_a_mean, '1d')

  def check_warning(self, f, kind):
    messages, _ = self.warned(f, kind)
    self.assertLen(messages, 1)
    lines, first = inspect.getsourcelines(f)
    line = first + next(i for i, s in enumerate(lines) if 'twice' in s)
    name = 'pmean' if f is averaged else 'psum'
    self.assertRegex(messages[0], rf"^jax.lax.{name} over 'x' at [^ ]*:{line}")
    # The line that is differentiated, too.
    at = re.search(r'backward pass of [^ ]*already_summed_test.py:(\d+)',
                   messages[0])
    self.assertIsNotNone(at, messages[0])
    self.assertNotEqual(int(at[1]), line)

  @red(NO_WARNING, bases='>=0.6.1')
  @red(OTHER_COTANGENT, bases='<0.6.1')
  def test_warns_once_a_line(self):
    self.warned(plain)
    self.assertEmpty(said(plain)[0])
    self.assertLen(said(averaged)[0], 1)

  @red(NO_WARNING, bases='>=0.6.1')
  @red(OTHER_COTANGENT, bases='<0.6.1')
  def test_is_of_the_users_line(self):
    self.warned(plain)
    from jax._src.varying.autodiff import already_summed
    already_summed._said.clear()
    with warnings.catch_warnings(record=True) as found:
      warnings.simplefilter('ignore')
      warnings.filterwarnings(
          'always', category=jax.errors.SummedGradientWarning)
      run(plain, '1d', True)
    lines, first = inspect.getsourcelines(plain)
    line = first + next(i for i, s in enumerate(lines) if 'twice' in s)
    self.assertEqual([(w.filename, w.lineno) for w in found],
                     [(__file__, line)])

  @red(NO_WARNING, bases='>=0.6.1')
  @red(OTHER_COTANGENT, bases='<0.6.1')
  def test_warns_what_is_wrong(self):
    # The warning is right: the sum is four times the gradient.
    (message,), got = self.warned(plain)
    want = jax.grad(lambda w: sum(loss(w, x) for x in X))(W)
    self.assertAllClose(got, 4. * want, atol=1e-5, rtol=1e-5)
    self.assertIn('multiplies it by the number of devices', message)
    self.assertIn('Leave jax.lax.psum out', message)
    (message,), got = self.warned(averaged)
    self.assertAllClose(got, want, atol=1e-5, rtol=1e-5)
    self.assertIn('leaves it the sum', message)

  @parameterized.product(
      f=[constants, replicated, loss_averaged_before], jit=[True, False])
  def test_guard_silent(self, f, jit):
    self.assertEmpty(said(f, jit=jit)[0])

  # Pristine 0.6.0 takes no derivative here; later ones do.
  @red(OTHER_COTANGENT, bases='<0.6.1')
  @parameterized.parameters(*((f, '1d') for f in FINE), (own_part, '2d'))
  def test_derivative_silent(self, f, kind):
    self.assertEmpty(said(f, kind)[0])

  @red(OTHER_COTANGENT, bases='<0.6.1')
  def test_derivative_jaxpr(self):
    # The same one as of the same sum written as a product.
    mesh = make_mesh(4)
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      jaxpr = jax.make_jaxpr(shard_map(
          plain, mesh=mesh, in_specs=(P(), P('x')), out_specs=P()))(W, X)
    names = [e.primitive.name for e in jaxpr.eqns[0].params['jaxpr'].eqns]
    self.assertEqual(names[-2:], ['pvary', 'psum_invariant'])

  @red(NO_OPTION, api_missing=True)
  def test_option_error(self):
    jax.config.update('jax_shard_map_summed_gradients', 'error')
    self.addCleanup(
        jax.config.update, 'jax_shard_map_summed_gradients', 'warn')
    with self.assertRaisesRegex(ValueError, 'has already summed over'):
      run(plain)
    run(constants)

  @red(NO_OPTION, api_missing=True)
  def test_option_off(self):
    jax.config.update('jax_shard_map_summed_gradients', 'off')
    self.addCleanup(
        jax.config.update, 'jax_shard_map_summed_gradients', 'warn')
    self.assertEmpty(said(plain)[0])

  @red(OTHER_COTANGENT, bases='<0.6.1')
  @parameterized.parameters(plain, averaged, own_part)
  def test_derivative_values(self, f):
    # What is computed is what it was.
    g = jax.grad(lambda w: sum(loss(w, x) for x in X))(W)
    got = said(f)[1]
    self.assertAllClose(got, 4. * g if f is plain else g, atol=1e-5, rtol=1e-5)

  def test_guard_check_off(self):
    mesh = make_mesh(4)
    with warnings.catch_warnings():
      warnings.simplefilter('error')
      got = shard_map(lambda w, x: lax.psum(jax.grad(loss)(w, x), 'x'),
                      mesh=mesh, in_specs=(P(), P('x')), out_specs=P(),
                      **UNCHECKED)(W, X)
    want = jax.grad(lambda w: sum(loss(w, x) for x in X))(W)
    np.testing.assert_allclose(got, want, rtol=1e-5)
