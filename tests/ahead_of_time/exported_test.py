# SPDX-License-Identifier: Apache-2.0
"""Calls of exported functions, batched and differentiated (jax#28327)."""

from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NO_FORWARD_MODE = ("^TypeError: can't apply forward-mode autodiff .jvp. to a "
                   'custom_vjp function')
NO_RULE_FOR_CALL_EXPORTED = ('^NotImplementedError: No replication rule for '
                             'call_exported')
NO_RULE_FOR_CUSTOM_LIN = ('^NotImplementedError: Differentiation rule for '
                          "'custom_lin' not implemented")
NO_BATCHING_RULE = ("^NotImplementedError: Batching rule for 'call_exported' "
                    'not implemented')

X = np.linspace(.1, 1., 4, dtype=np.float32)
W = np.float32(1.5)
COUNTS = np.arange(4, dtype=np.int32)


def model(counts, x, w):
  """Integers among arguments and results, each kind of derivative nonzero."""
  return {'y': jnp.sin(x) * w * w * counts.astype(x.dtype), 'next': counts + 1}


def through_a_file(f, *args, vjp_order):
  exported = export.export(jax.jit(f))(*args)
  return export.deserialize(exported.serialize(vjp_order=vjp_order))


STORED = {}


def stored(vjp_order):
  if vjp_order not in STORED:
    STORED[vjp_order] = through_a_file(model, COUNTS, X, W,
                                       vjp_order=vjp_order)
  return STORED[vjp_order].call


def loaded(vjp_order):
  """The model's result, and that of the function that was stored."""
  call = stored(vjp_order)
  return (lambda x, w: call(COUNTS, x, w)['y'],
          lambda x, w: model(COUNTS, x, w)['y'])


# Of a tangent of `x`: what is linear in it, or not.
TANGENTS = {
    'jvp': lambda f: lambda t, x, w: jax.jvp(
        lambda x: f(x, w), (x,), (t,))[1],
    'one_of_two': lambda f: lambda t, x, w: jax.jvp(f, (x, w), (t, w))[1],
    'linearize': lambda f: lambda t, x, w: jax.linearize(
        lambda x: f(x, w), x)[1](t),
    'vmap': lambda f: lambda t, x, w: jax.vmap(lambda t: jax.jvp(
        lambda x: f(x, w), (x,), (t,))[1])(jnp.stack([t, -2 * t])).sum(0),
    'of_gradient': lambda f: lambda t, x, w: jax.jvp(
        jax.grad(lambda x: f(x, w).sum()), (x,), (t,))[1],
    'twice': lambda f: lambda t, x, w: jax.jvp(lambda x: jax.jvp(
        lambda x: f(x, w), (x,), (x,))[1], (x,), (t,))[1],
    'scan': lambda f: lambda t, x, w: lax.scan(
        lambda c, _: (jax.jvp(lambda x: f(x, w), (x,), (c,))[1], None),
        t, None, length=2)[0],
}


class ExportedTransformsTest(jtu.JaxTestCase):

  def agree(self, transform, vjp_order, *args, eager=False):
    """Compares with the function that was stored, jitted or both ways."""
    f, oracle = map(transform, loaded(vjp_order))
    expected = jax.jit(oracle)(*args)
    for call in (f, jax.jit(f)) if eager else (jax.jit(f),):
      self.assertAllClose(call(*args), expected, rtol=1e-4, atol=1e-5)

  @red(NO_BATCHING_RULE)
  def test_vmap(self):
    xs = np.stack([X, X + 1, X * 2])
    for in_axes, args in (((0, None), (xs, W)), ((1, None), (xs.T, W)),
                          ((None, 0), (X, xs[:, 0])), ((-1, 0), (xs.T, X[:3]))):
      self.agree(lambda f, i=in_axes: jax.vmap(f, i, out_axes=-1), 0, *args,
                 eager=True)

  @red(NO_BATCHING_RULE)
  def test_vmap_of_the_tree(self):
    counts = np.stack([COUNTS, COUNTS + 2])
    call = jax.vmap(stored(0), (0, None, None))
    self.assertAllClose(call(counts, X, W),
                        jax.vmap(model, (0, None, None))(counts, X, W))

  @red(NO_BATCHING_RULE)
  def test_vmap_twice_and_of_nothing(self):
    xs = np.ones((2, 4, 3), np.float32)
    self.agree(lambda f: jax.vmap(jax.vmap(f, (0, None)), (2, None)), 0, xs, W)
    self.agree(lambda f: jax.vmap(f, (0, None)), 0, xs[:0, :, 0], W)

  @red(NO_BATCHING_RULE)
  def test_vmap_of_grad(self):
    xs = np.stack([X, X + 1])
    self.agree(lambda f: jax.vmap(jax.grad(
        lambda x, w: f(x, w).sum(), 1), (0, None)), 1, xs, W)

  @red(NO_FORWARD_MODE)
  def test_jvp(self):
    self.agree(lambda f: lambda x, w, t, u: jax.jvp(f, (x, w), (t, u)), 2,
               X, W, X + 1, W)
    self.agree(lambda f: lambda x, w, t: jax.jvp(
        lambda x: f(x, w), (x,), (t,)), 2, X, W, X + 1, eager=True)

  @red(NO_FORWARD_MODE)
  def test_jvp_of_the_tree(self):
    def rates(f):
      return jax.jvp(lambda x: f(COUNTS, x, W), (X,), (X,))
    (value, rate), (expected, expected_rate) = rates(stored(2)), rates(model)
    self.assertAllClose(value, expected)
    self.assertAllClose(rate['y'], expected_rate['y'])
    self.assertEqual(rate['next'].dtype, jax.dtypes.float0)

  @red(NO_FORWARD_MODE)
  def test_linearize(self):
    self.agree(lambda f: lambda x, w, t: jax.linearize(f, x, w)[1](t, w), 2,
               X, W, X + 1)

  @red(NO_FORWARD_MODE)
  def test_jacfwd(self):
    self.agree(lambda f: jax.jacfwd(f, (0, 1)), 2, X, W)

  @red(NO_BATCHING_RULE)
  def test_jacrev(self):
    self.agree(lambda f: jax.jacrev(f, (0, 1)), 1, X, W, eager=True)

  @red(NO_BATCHING_RULE)
  def test_jacrev_twice(self):
    self.agree(lambda f: jax.jacrev(jax.jacrev(f, 1), (0, 1)), 2, X, W)

  @red(NO_RULE_FOR_CUSTOM_LIN)
  def test_jvp_twice(self):
    def twice(f):
      rate = lambda x, w: jax.jvp(f, (x, w), (X, W))[1]
      return lambda x, w: jax.jvp(rate, (x, w), (x, 2 * w))
    self.agree(twice, 4, X, W)

  @red(NO_FORWARD_MODE)
  def test_hessian(self):
    self.agree(lambda f: jax.hessian(lambda x, w: f(x, w).sum(), (0, 1)), 3,
               X, W)

  def test_grad_is_as_before(self):
    self.agree(lambda f: jax.grad(lambda x, w: f(x, w).sum(), (0, 1)), 1, X, W)

  @red(NO_FORWARD_MODE)
  def test_jvp_with_symbolic_sizes(self):
    n, = export.symbolic_shape('n')
    def f(x):
      return jnp.sin(x) * x
    call = through_a_file(
        f, jax.ShapeDtypeStruct((n,), np.float32), vjp_order=2).call
    for x in (X, X[:2]):
      self.assertAllClose(jax.jvp(call, (x,), (x,)), jax.jvp(f, (x,), (x,)))
    self.assertAllClose(jax.jacfwd(jax.vmap(call))(X[None]),
                        jax.jacfwd(jax.vmap(f))(X[None]))

  @red(NO_FORWARD_MODE)
  def test_jvp_with_64_bits_where_they_are_off(self):
    def f(x):
      return jnp.sin(x.astype(np.float64))
    with config.enable_x64(True):
      call = through_a_file(f, X, vjp_order=2).call
      want = jax.jvp(f, (X,), (X,))
    with config.enable_x64(False):
      for run in (jax.jvp, jax.jit(jax.jvp, static_argnums=0)):
        got = run(call, (X,), (X,))
        self.assertEqual([x.dtype for x in got], [np.float64] * 2)
        for x, y in zip(got, want):
          np.testing.assert_allclose(x, y, rtol=1e-12)

  @red(NO_FORWARD_MODE)
  def test_inside_control_flow(self):
    def looped(f):
      def rate(x, w):
        return jax.jvp(lambda w: f(x, w), (w,), (w,))[1]
      return lambda x, w: lax.scan(
          lambda c, _: (lax.cond(c[0] > 0, rate, lambda c, w: c, c, w), None),
          x, None, length=2)[0]
    self.agree(looped, 2, X, W)

  @red(NO_FORWARD_MODE, bases='>=0.6')
  @red(NO_RULE_FOR_CALL_EXPORTED, bases='<0.6')
  @parameterized.named_parameters(('_1d', False), ('_2d', True))
  def test_inside_shard_map(self, two):
    devices = np.array(jax.devices()[:4])
    mesh = Mesh(devices.reshape(2, 2) if two else devices,
                ('x', 'y') if two else ('x',))
    spec = P(('x', 'y')) if two else P('x')
    xs = np.concatenate([X, X + 1, X + 2, X + 3])
    def over_devices(f, n):
      mapped = shard_map(f, mesh=mesh, in_specs=(spec, P()), out_specs=spec)
      return lambda w: jax.jvp(lambda w: mapped(xs, w), (w,), (n,))
    f, oracle = loaded(2)
    rates = jax.jit(over_devices(f, W))(W)
    self.assertAllClose(rates, jax.jvp(lambda w: jnp.concatenate(
        [oracle(X + i, w) for i in range(4)]), (W,), (W,)), rtol=1e-5)

  @red(NO_FORWARD_MODE, bases='>=0.6')
  @red(NO_RULE_FOR_CALL_EXPORTED, bases='<0.6')
  def test_inside_shard_map_tangents_vary_with_the_operands(self):
    f, _ = loaded(2)
    mesh = Mesh(np.array(jax.devices()[:4]), ('x',))
    rate = lambda x: jax.jvp(lambda w: f(x, w), (W,), (W,))[1]
    claimed = shard_map(rate, mesh=mesh, in_specs=P('x'), out_specs=P())
    xs = np.concatenate([X, X + 1, X + 2, X + 3])
    for transform in (jax.jit, lambda f: f):
      with self.assertRaisesRegex(ValueError, 'replicat'):
        jax.block_until_ready(transform(claimed)(xs))
    same = shard_map(rate, mesh=mesh, in_specs=P(), out_specs=P())
    self.assertAllClose(jax.jit(same)(X), rate(X), rtol=1e-5)

  def over(self, two):
    devices = np.array(jax.devices()[:4])
    mesh = Mesh(devices.reshape(2, 2) if two else devices,
                ('x', 'y') if two else ('x',))
    return mesh, P(mesh.axis_names)

  @red('^TypeError: scan body function carry input and carry output must '
       'have equal types', bases='>=0.6', cases=['scan'])
  @red('^ValueError: linearized function called on tangent values '
       'inconsistent with the original', bases='>=0.6', cases=['linearize'],
       also='varying')
  @red(NO_RULE_FOR_CUSTOM_LIN, bases='>=0.6',
       cases={'name': 'twice', 'jit': True})
  @red("^TypeError: unhashable type: 'list'", bases='>=0.6',
       cases={'name': ['jvp', 'twice', 'one_of_two'], 'jit': False})
  @red("^TypeError: unhashable type: 'list'", bases='>=0.6', also='varying',
       cases={'name': 'of_gradient', 'jit': False})
  @red(NO_FORWARD_MODE, bases='>=0.6', cases=['of_gradient'], also='varying')
  @red(NO_FORWARD_MODE, bases='>=0.6')
  @red(NO_RULE_FOR_CALL_EXPORTED, bases='<0.6')
  @parameterized.product(name=list(TANGENTS), two=[False, True],
                         jit=[False, True])
  def test_inside_shard_map_tangents_that_vary(self, name, two, jit):
    # Each device has a tangent of its own, at primals that all share.
    mesh, spec = self.over(two)
    f, oracle = loaded(4)
    rows = np.stack([X, X + 1, 2 * X, X - 1])
    def inside(t, x, w):
      return TANGENTS[name](f)(t[0], x, w)[None]
    mapped = shard_map(inside, mesh=mesh, in_specs=(spec, P(), P()),
                       out_specs=spec)
    got = (jax.jit(mapped) if jit else mapped)(rows, X, W)
    want = np.stack([TANGENTS[name](oracle)(t, X, W) for t in rows])
    self.assertAllClose(got, want, rtol=1e-3, atol=1e-3)
    claimed = shard_map(lambda t, x, w: inside(t, x, w)[0], mesh=mesh,
                        in_specs=(spec, P(), P()), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.block_until_ready((jax.jit(claimed) if jit else claimed)(rows, X, W))

  @red(NO_RULE_FOR_CUSTOM_LIN, bases='>=0.6')
  @red(NO_RULE_FOR_CALL_EXPORTED, bases='<0.6')
  @parameterized.named_parameters(('_1d', False), ('_2d', True))
  def test_inside_shard_map_gradient_of_tangents_that_vary(self, two):
    mesh, spec = self.over(two)
    f, oracle = loaded(4)
    rows = np.stack([X, X + 1, 2 * X, X - 1])
    def inside(t, x, w):
      return TANGENTS['jvp'](f)(t[0], x, w)[None]
    mapped = shard_map(inside, mesh=mesh, in_specs=(spec, P(), P()),
                       out_specs=spec)
    got = jax.jit(jax.grad(lambda *a: jnp.sum(mapped(*a) ** 2), (0, 1, 2)))
    want = jax.grad(lambda ts, x, w: sum(
        jnp.sum(TANGENTS['jvp'](oracle)(t, x, w) ** 2) for t in ts), (0, 1, 2))
    self.assertAllClose(got(rows, X, W), want(rows, X, W), rtol=1e-3)

  @red("^AssertionError: Regex didn't match: 'ValueError: "
       r'\.\*Exported\.call\.\*expected')
  @parameterized.named_parameters(
      ('_none', 0, lambda f: jax.grad(lambda x: f(x, W).sum()), 1),
      ('_one', 1, lambda f: lambda x: jax.jvp(
          lambda x: f(x, W), (x,), (x,)), 1),
      ('_two', 0, lambda f: lambda x: jax.jvp(
          lambda x: f(x, W), (x,), (x,)), 2),
      ('_three', 2, lambda f: jax.hessian(lambda x: f(x, W).sum()), 1))
  def test_orders_are_named(self, vjp_order, transform, missing):
    f, _ = loaded(vjp_order)
    try:
      transform(f)(X)
      said = 'differentiated'
    except Exception as e:  # pylint: disable=broad-except
      said = f'{type(e).__name__}: {e}'
    self.assertRegex(said, f'ValueError: .*Exported.call.*expected {missing} '
                     r'more order.*serialize\(vjp_order=N\)')
