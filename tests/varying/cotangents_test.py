# SPDX-License-Identifier: Apache-2.0
"""Differentiation inside shard_map: tangents and cotangents (jax#28193).

Every result is compared with the same function applied to each device's block
outside of shard_map.
"""
import functools

from absl.testing import parameterized
import jax
from jax import ad_checkpoint
from jax import lax
from jax._src import config as jax_config
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import BlockwiseTestCase
from varying.testing.common import blockwise
from varying.testing.common import cast
from varying.testing.common import fill
from varying.testing.common import make_mesh

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_COTANGENT = ('^ValueError: unexpected JAX type.*for argument to vjp '
                   'function')
OTHER_TANGENTS = ('^ValueError: linearized function called on tangent values '
                  'inconsistent with the original primal')

# Eager shard_map compiles each operation, so it has a few cases only.
JIT, EAGER = ('2d', True), ('2d', False)
f0 = jax.dtypes.float0


def inputs(dtype=np.float32, n=1):
  rng = np.random.RandomState(0)
  out = []
  for _ in range(n):
    x = rng.uniform(0.5, 2., (8, 4))
    if np.issubdtype(dtype, np.complexfloating):
      x = x + 1j * rng.uniform(0.5, 2., (8, 4))
    out.append(x.astype(dtype))
  return out


class Base(BlockwiseTestCase):

  def check_wide(self, f, *args):
    with jax_config.enable_x64(True):
      self.check(f, JIT, *args, tol=1e-12)


def loss(x):
  return jnp.sum(jnp.sin(x) * x ** 2)


def tree_loss(p):
  return jnp.sum(jnp.tanh(p['a']) * p['b'][0]), p['a'] * 2.


def value_and_grad(x):
  v, g = jax.value_and_grad(loss)(x)
  return fill(x, v), g


def has_aux(x):
  (v, aux), g = jax.value_and_grad(
      tree_loss, has_aux=True)({'a': x, 'b': [x * 3.]})
  return fill(x, v), aux, g


def argnums(x):
  return jax.grad(lambda a, b, c: (a * b ** 2 * c).sum(), (0, 2))(x, x + 1., x)


def allow_int(x):
  i = (x * 5.).astype(int)
  gi, gx = jax.grad(lambda i, x: (i.astype(x.dtype) * x).sum(), (0, 1),
                    allow_int=True)(i, x)
  assert gi.dtype == f0 and gi.shape == x.shape
  return gx


def jacrev(x):
  return jax.jacrev(lambda x: jnp.cumsum(jnp.exp(x), 0))(x).sum((0, 1))


def jacrev_tree(x):
  out = jax.jacrev(lambda p: tree_loss(p)[0])({'a': x, 'b': [x]})
  return out['a'], out['b'][0]


def hvp_reverse_over_reverse(x):
  v = np.ones(x.shape, x.dtype)
  return jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x), v))(x)


def closure_convert(x):
  w = x * 2.
  fun, consts = jax.closure_convert(lambda y: jnp.sum(jnp.sin(y * w)), x)
  return jax.grad(fun)(x, *consts)


def grad_of_jit(x):
  return jax.grad(jax.jit(loss))(x)


def grad_of_vmap(x):
  return jax.vmap(jax.grad(lambda r: jnp.sum(r ** 3)))(x)


# All others: derivatives_test.py.
POLICIES = {
    'none': None,
    'dots_saveable': jax.checkpoint_policies.dots_saveable,
    'only_names': jax.checkpoint_policies.save_only_these_names('h'),
    'offload_names': jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=['h'], names_which_can_be_offloaded=[],
        offload_src='device', offload_dst='pinned_host'),
}


def remat(policy, x):
  @functools.partial(jax.checkpoint, policy=policy)
  def f(x):
    h = ad_checkpoint.checkpoint_name(jnp.sin(x @ x.T), 'h')
    return jnp.sum(jnp.sin(h))
  return jax.grad(f)(x)


IN_USER_CODE = [value_and_grad, has_aux, argnums, allow_int, jacrev,
                jacrev_tree, hvp_reverse_over_reverse, closure_convert,
                grad_of_jit, grad_of_vmap]


class GradTest(Base):
  """Transformations that make their own cotangent. Refused by 0.6.0."""

  @red(OTHER_COTANGENT, bases='<0.6.1')
  @red(OTHER_COTANGENT, bases='>=0.6.1,<0.7', cases=['jacrev', 'jacrev_tree'])
  @parameterized.product(f=IN_USER_CODE)
  def test_transformation(self, f):
    self.check(f, JIT, *inputs())

  @red(OTHER_COTANGENT, bases='<0.6.1')
  # Over two axes.
  @red(OTHER_COTANGENT, bases='>=0.6.1,<0.7', cases=['jacrev_tree'])
  @parameterized.parameters((value_and_grad, ('1d', True)),
                            (jacrev_tree, EAGER))
  def test_1d_and_eager(self, f, where):
    self.check(f, where, *inputs())

  @red(OTHER_COTANGENT, bases='<0.6.1')
  @parameterized.product(policy=list(POLICIES))
  def test_remat(self, policy):
    f = functools.partial(remat, POLICIES[policy])
    self.check(f, JIT, *inputs())

  @red(OTHER_COTANGENT, bases='<0.6.1')
  @red(OTHER_COTANGENT, bases='>=0.6.1,<0.7', cases=['jacrev'])
  @parameterized.product(f=[value_and_grad, jacrev])
  def test_float64(self, f):
    self.check_wide(f, *inputs(np.float64))

  @red(OTHER_COTANGENT, bases='<0.6.1')
  def test_holomorphic(self):
    def f(x):
      return jax.grad(lambda z: jnp.sum(jnp.sin(z) * z), holomorphic=True)(x)
    self.check(f, JIT, *inputs(np.complex64))

  @red(OTHER_COTANGENT, bases='<0.6.1')
  @parameterized.product(jit=[False, True])
  def test_gradient_of_replicated_input_is_summed(self, jit):
    # What JAX defines: d/dw of the sum over devices of the local losses.
    x, = inputs()
    w = np.float32(1.5)
    def f(x, w):
      return jax.grad(lambda w: jnp.sum(jnp.sin(x * w)))(w)
    mesh, spec = make_mesh(2, 2), P('x', 'y')
    g = shard_map(f, mesh=mesh, in_specs=(spec, P()), out_specs=P())
    got = (jax.jit(g) if jit else g)(x, w)
    want = np.sum(np.cos(x * w) * x)
    np.testing.assert_allclose(got, want, rtol=1e-5)

  def test_gradient_equals_unsharded_emulation(self):
    # The loss is summed over 'x' by hand; the emulation is vmap over blocks.
    x, = inputs()
    w = np.float32(1.5)
    def f(x, w):
      def local(w):
        h = lax.pmean(jnp.sum(x * w), 'x')
        return jnp.sum(jnp.sin(x * w) * h)
      return jax.grad(lambda w: lax.psum(local(w), 'x'))(w)
    mesh, spec = make_mesh(4), P('x')
    got = jax.jit(shard_map(f, mesh=mesh, in_specs=(spec, P()),
                            out_specs=P()))(x, w)
    blocks = x.reshape(4, 2, 4)
    def emulated(w):
      def local(b):
        h = lax.pmean(jnp.sum(b * w), 'x')
        return jnp.sum(jnp.sin(b * w) * h)
      return jax.vmap(local, axis_name='x')(blocks).sum()
    np.testing.assert_allclose(got, jax.jit(jax.grad(emulated))(w), rtol=1e-5)

  @red(OTHER_COTANGENT, bases='<0.6.1')
  def test_loss_varies_over_one_of_two_axes(self):
    x, = inputs()
    def f(x):
      return jax.grad(lambda x: lax.psum(jnp.sum(jnp.sin(x)), 'y'))(x)
    mesh, spec = make_mesh(2, 2), P('x', 'y')
    got = shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)(x)
    np.testing.assert_allclose(got, np.cos(x), rtol=1e-5)


CTS = {
    'ones': lambda: jnp.ones(()),
    'python_float': lambda: 1.0,
    'numpy_scalar': lambda: np.float32(1.),
    'numpy_array': lambda: np.ones((), np.float32),
    'zeros': lambda: jnp.zeros(()),
    'minus_two': lambda: -2.0,
}


@red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for argument '
     'to')
class CotangentTest(Base):
  """Cotangents that the user makes. Refused by every release since 0.6.0."""

  @parameterized.product(where=[('1d', True), JIT])
  def test_vjp_scalar(self, where):
    def f(x):
      _, pull = jax.vjp(loss, x)
      return {name: pull(ct())[0] for name, ct in CTS.items()}
    self.check(f, where, *inputs())

  def test_vjp_vector(self):
    def f(x):
      y, pull = jax.vjp(lambda x: jnp.sin(x) @ jnp.ones((x.shape[1], 3)), x)
      return pull(jnp.arange(y.size, dtype=y.dtype).reshape(y.shape))[0]
    self.check(f, JIT, *inputs())

  def test_vjp_pytree_partly_unvarying(self):
    def f(x):
      _, pull = jax.vjp(lambda x: {'a': loss(x), 'b': (x ** 2, x * 3.)}, x)
      return pull({'a': 1., 'b': (jnp.ones(x.shape), x)})[0]
    self.check(f, JIT, *inputs())

  def test_vjp_has_aux_and_integer_output(self):
    def f(x):
      _, pull, aux = jax.vjp(
          lambda x: ((loss(x), x.astype(int)), x + 1.), x, has_aux=True)
      return pull((1., np.zeros(x.shape, f0)))[0], aux
    self.check(f, JIT, *inputs())

  @red('^TypeError: cotangent type does not match function output, expected '
       r'\(ShapedArray\(float32\[')
  @parameterized.product(where=[JIT, EAGER])
  def test_linear_transpose(self, where):
    def f(x):
      t = jax.linear_transpose(lambda x: (3. * x, x.sum(0)), x)
      return t((jnp.ones(x.shape), np.ones(x.shape[1:], x.dtype)))[0]
    self.check(f, where, *inputs())

  @red(OTHER_TANGENTS)
  @parameterized.product(where=[JIT, EAGER])
  def test_linearize(self, where):
    def f(x):
      return jax.linearize(jnp.sin, x)[1](jnp.ones(x.shape))
    self.check(f, where, *inputs())

  @red(OTHER_TANGENTS)
  @parameterized.product(where=[JIT, EAGER])
  def test_linearize_and_differentiate(self, where):
    def f(x):
      lin = jax.linearize(jax.jit(jnp.sin), x)[1]
      t = jnp.ones(x.shape)
      return jax.jvp(lin, (t,), (t,))[1]
    with jax.enable_checks(True):
      self.check(f, where, *inputs())

  @red(OTHER_TANGENTS)
  @parameterized.product(where=[JIT, EAGER])
  def test_linearize_at_a_shared_point(self, where):
    # A direction for each device, as jvp takes it; the value does not vary.
    def f(x):
      p = jnp.full(x.shape, 1.5)
      y, lin = jax.linearize(
          lambda p: lax.fori_loop(0, 2, lambda i, c: jnp.sin(c * p), p), p)
      return x * 0. + y, lin(x), lin(jnp.ones(x.shape)) + 0. * x
    self.check(f, where, *inputs())

  @red(OTHER_TANGENTS)
  def test_linearize_output_varies_as_the_tangent_does(self):
    x, = inputs()
    mesh = make_mesh(2, 2)
    def f(x):
      y, lin = jax.linearize(jnp.sin, jnp.full(x.shape[:1], 1.5))
      return y, lin(x[:, 0])
    g = shard_map(f, mesh=mesh, in_specs=P('x'), out_specs=(P(), P('x')))
    y, t = jax.jit(g)(x)
    np.testing.assert_allclose(y, np.sin(1.5), rtol=1e-5)
    np.testing.assert_allclose(t, np.cos(1.5) * x[:, 0], rtol=1e-5)

  @red(OTHER_TANGENTS)
  @parameterized.parameters(False, True)
  def test_hessian_times_a_vector_of_each_device(self, jit):
    w, v = np.float32([.5, 1.]), np.arange(8, dtype=np.float32)
    def f(w, v):
      gradient = jax.grad(lambda w: jnp.sum(jnp.sin(w) ** 3))
      return jax.linearize(gradient, w)[1](v)
    g = shard_map(f, mesh=make_mesh(4),
                  in_specs=(P(), P('x')), out_specs=P('x'))
    second = 6 * np.sin(w) * np.cos(w) ** 2 - 3 * np.sin(w) ** 3
    self.assertAllClose((jax.jit(g) if jit else g)(w, v),
                        np.tile(second, 4) * v, rtol=1e-5, atol=1e-5)

  def test_float64(self):
    def f(x):
      return jax.vjp(loss, x)[1](1.)[0]
    self.check_wide(f, *inputs(np.float64))

  def test_remat_vjp(self):
    f = lambda x: jax.vjp(jax.checkpoint(loss), x)[1](1.)[0]
    self.check(f, JIT, *inputs())

  @parameterized.parameters(0, 1)
  def test_cotangent_with_some_of_the_axes(self, dim):
    # The cotangent varies over one mesh axis, the output over two.
    x, = inputs()
    mesh, spec = make_mesh(2, 2), P('x', 'y')
    part = P('x') if dim == 0 else P(None, 'y')
    ct = x[:, :1] if dim == 0 else x[:1]
    def f(x, ct):
      return jax.vjp(jnp.sin, x)[1](ct * jnp.ones(x.shape))[0]
    got = shard_map(f, mesh=mesh, in_specs=(spec, part), out_specs=spec)(x, ct)
    np.testing.assert_allclose(got, np.cos(x) * ct, rtol=1e-5)


class ErrorTest(Base):
  """Mistakes stay mistakes; the message says which axes and what to apply."""

  def run_2d(self, f):
    x, = inputs()
    mesh, spec = make_mesh(2, 2), P('x', 'y')
    return jax.jit(shard_map(f, mesh=mesh, in_specs=(spec, P()),
                             out_specs=spec))(x, np.float32(2.))

  @red('^AssertionError: .*cotangent.*does not match "')
  @parameterized.parameters('vjp', 'linear_transpose')
  def test_cotangent_varies_more(self, api):
    def f(x, w):
      if api == 'vjp':
        pull = jax.vjp(lambda w: [w, {'b': w * 2.}], w)[1]
      else:
        pull = jax.linear_transpose(lambda w: [w, {'b': w * 2.}], w)
      return x + pull([1., {'b': lax.psum(x[0, 0], 'x')}])[0]
    with self.assertRaisesRegex(
        (TypeError, ValueError),
        rf"jax\.{api}: .*cotangent\[1\]\['b'\].*varies over mesh axis 'y'"
        r".*psum\(ct, \('y',\)\).*(pvary|pcast)"):
      self.run_2d(f)

  @red('^ValueError: linearized function called on tangent values')
  def test_cotangent_varies_more_than_the_primal(self):
    def gradient(x, w):
      _, lin = jax.linearize(lambda w: jnp.sum(w ** 2), w)
      return x + jax.linear_transpose(lin, w)(lin(x[0, 0]))[0]
    advice = r"(pvary|pcast)\(primal, \('x', 'y'\).*linear_transpose.*linearize"
    with self.assertRaisesRegex(TypeError, advice):
      self.run_2d(gradient)
    x, = inputs()
    got = self.run_2d(lambda x, w: gradient(x, cast(w, ('x', 'y'))))
    self.assertEqual(got.shape, x.shape)
    first = blockwise(lambda x: fill(x, x[0, 0]), (2, 2), x)
    np.testing.assert_allclose(got, x + 16. * first, rtol=1e-5)

  @parameterized.parameters('shape', 'dtype')
  def test_shape_and_dtype_are_still_checked(self, what):
    ct = jnp.ones((2,)) if what == 'shape' else jnp.ones((), int)
    def f(x, w):
      return jax.vjp(loss, x)[1](ct)[0]
    with self.assertRaisesRegex(ValueError, 'unexpected JAX type'):
      self.run_2d(f)


class IdentityTest(Base):
  """Programs that pristine accepts stay as they are, without run-time casts."""

  def test_outside_shard_map(self):
    x, = inputs()
    text = str(jax.make_jaxpr(lambda x: jax.vjp(loss, x)[1](1.)[0])(x))
    self.assertNotIn('pvary', text)
    self.assertNotIn('pcast', text)

  def test_check_off(self):
    x, = inputs()
    mesh, spec = make_mesh(2, 2), P('x', 'y')
    f = lambda x: jax.vjp(loss, x)[1](1.)[0]
    try:
      g = shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec,
                    check_vma=False)
    except TypeError:
      g = shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec,
                    check_rep=False)
    np.testing.assert_allclose(jax.jit(g)(x), jax.jit(jax.grad(loss))(x),
                               rtol=1e-5)
