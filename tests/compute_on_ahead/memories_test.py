# SPDX-License-Identifier: Apache-2.0
"""A state in host memory, gradients on the device (jax#27825, jax#34041)."""

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import compute_on as compute_on_lib
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from varying.testing.common import equations

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
OTHER_MEMORY = '^ValueError: memory_space of all inputs passed to'
OTHER_MEMORY_OF_MUL = ('^ValueError: memory_space of all inputs passed to '
                       r'`mul` must be the same\. Got one operand with')
NOT_ON_HOST = (r'^AssertionError: \(ShapedArray\(float32\[8\]\), '
               r'ShapedArray\(float32<host>\[8\]\),')
COTANGENT_ON_HOST = (r'^ValueError: Expected cotangent type float32<host>\[\] '
                     r'but got float32\[\]')

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
STATE = np.arange(8, dtype=np.float32)
GRADIENT = np.linspace(-1, 2, 8, dtype=np.float32)


def on_host(f, out_memory_spaces=HOST):
  # 0.10.2 calls this form compute_on2.
  form = getattr(compute_on_lib, 'compute_on2', compute_on_lib.compute_on)
  return form(f, compute_type='device_host',
              out_memory_spaces=out_memory_spaces)


def update(state, gradient):
  return state - 0.1 * gradient ** 2 * state


def to_host(x):
  return jax.device_put(x, HOST)


def moved_within(state, gradient):
  return on_host(lambda s, g: update(s, to_host(g)))(state, gradient)


def moved_before(state, gradient):
  return on_host(update)(state, to_host(gradient))


def result_on_device(state, gradient):
  return on_host(update, DEVICE)(state, to_host(gradient))


def several_results(state, gradient):
  f = on_host(lambda s, g: (s * g, update(s, g), g), (HOST, DEVICE, HOST))
  return f(state, to_host(gradient))[1]


def no_compute_on(state, gradient):
  return update(state, to_host(gradient))


def by_sharding(state, gradient):
  kind = jax.sharding.SingleDeviceSharding(
      jax.devices()[0], memory_kind='pinned_host')
  return update(state, jax.device_put(gradient, kind))


UPDATES = (moved_within, moved_before, result_on_device, several_results,
           no_compute_on, by_sharding)


def loss(f):
  return lambda s, g: jnp.sum(jax.device_put(f(s, g), DEVICE) ** 2)


def by_hand(s, g):
  new = s - 0.1 * g ** 2 * s
  return 2 * new * (1 - 0.1 * g ** 2), -0.4 * new * s * g


# Losses on the host of the state, each with its gradient by hand.
LOSSES = (
    ('sum', lambda s: (s * 2).sum(), lambda s: np.full(8, 2)),
    ('mean', lambda s: (s ** 2).mean(), lambda s: s / 4),
    ('element', lambda s: s[3] * 2, lambda s: 2 * (np.arange(8) == 3)),
    ('slice', lambda s: (s[1:4] ** 2).sum(),
     lambda s: 2 * s * (np.abs(np.arange(8) - 2) < 2)),
    ('indices', lambda s: (s[np.array([3, 1, 3])] ** 2).sum(),
     lambda s: 2 * s * np.array([0, 1, 0, 2, 0, 0, 0, 0])),
    ('norm', lambda s: jnp.sqrt((s ** 2).sum()),
     lambda s: s / np.sqrt((s ** 2).sum())),
)


class ComputeOnMemoriesTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.state = jax.device_put(STATE, HOST)
    self.gradient = jax.device_put(GRADIENT, DEVICE)

  def assertGradients(self, found, expected=None):
    for x, e in zip(found, expected or by_hand(STATE, GRADIENT)):
      self.assertAllClose(np.asarray(x), e, rtol=1e-5, atol=1e-5)
    self.assertEqual([x.sharding.memory_kind for x in found],
                     ['pinned_host', 'device'])

  @red('^ValueError: Expected cotangent type',
       cases=['by_sharding', 'no_compute_on', 'result_on_device',
              'several_results'])
  @red(OTHER_MEMORY_OF_MUL)
  @parameterized.named_parameters((f'_{f.__name__}', f) for f in UPDATES)
  def test_gradients(self, f):
    gradients = jax.grad(loss(f), argnums=(0, 1))
    self.assertGradients(jax.jit(gradients)(self.state, self.gradient))
    self.assertGradients(gradients(self.state, self.gradient))

  @red(NOT_ON_HOST, cases=['result_on_device'])
  @red(OTHER_MEMORY_OF_MUL)
  @parameterized.named_parameters((f'_{f.__name__}', f) for f in (
      moved_before, result_on_device))
  def test_gradients_under_transformations(self, f):
    for policy in (None, jax.checkpoint_policies.everything_saveable):
      gradients = jax.grad(jax.checkpoint(loss(f), policy=policy),
                           argnums=(0, 1))
      self.assertGradients(jax.jit(gradients)(self.state, self.gradient))
    _, linear = jax.linearize(loss(f), self.state, self.gradient)
    self.assertGradients(jax.jit(jax.linear_transpose(
        linear, self.state, self.gradient))(jnp.float32(1)))
    batched = jax.jit(jax.vmap(jax.grad(loss(f), argnums=(0, 1))))
    self.assertGradients(
        batched(jax.device_put(np.stack([STATE, STATE]), HOST),
                jax.device_put(np.stack([GRADIENT, 2 * GRADIENT]), DEVICE)),
        by_hand(np.stack([STATE, STATE]), np.stack([GRADIENT, 2 * GRADIENT])))

  @red(NOT_ON_HOST)
  def test_gradients_in_a_loop(self):
    def steps(s, gs):
      s, _ = lax.scan(lambda s, g: (moved_before(s, g), None), s, gs)
      return jnp.sum(jax.device_put(s, DEVICE) ** 2)
    gs = np.stack([GRADIENT, 2 * GRADIENT])
    a, b = 1 - 0.1 * GRADIENT ** 2, 1 - 0.4 * GRADIENT ** 2
    last = STATE * a * b
    expected = (2 * last * a * b, np.stack([
        2 * last * STATE * b * -0.2 * GRADIENT,
        2 * last * STATE * a * -0.4 * GRADIENT]))
    found = jax.jit(jax.grad(steps, argnums=(0, 1)))(
        self.state, jax.device_put(gs, DEVICE))
    self.assertGradients(found, expected)

  @red(OTHER_MEMORY_OF_MUL)
  def test_gradients_over_a_mesh(self):
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ('x', 'y'))
    rows = NamedSharding(mesh, P('x'))
    state = jax.device_put(STATE, rows.with_memory_kind('pinned_host'))
    gradient = jax.device_put(GRADIENT, rows)
    found = jax.jit(jax.grad(loss(moved_before), argnums=(0, 1)))(
        state, gradient)
    self.assertGradients(found)

  def test_a_step(self):
    def step(w, momentum, x):
      gradient = jax.grad(lambda w: jnp.sum((w * x) ** 2))(w)
      momentum = on_host(lambda m, g: 0.9 * m + to_host(g))(momentum, gradient)
      return w - 0.1 * jax.device_put(momentum, DEVICE), momentum
    w, momentum = jax.jit(step)(self.gradient, self.state, GRADIENT)
    expected = 0.9 * STATE + 2 * GRADIENT ** 3
    self.assertAllClose(np.asarray(momentum), expected, rtol=1e-5)
    self.assertAllClose(np.asarray(w), GRADIENT - 0.1 * expected, rtol=1e-5,
                        atol=1e-6)
    self.assertEqual(momentum.sharding.memory_kind, 'pinned_host')

  @red('^ValueError: Expected cotangent type', cases=[
      'no_compute_on', 'result_on_device'])
  @red(OTHER_MEMORY, cases=['indices', 'moved_before'])
  @parameterized.named_parameters(
      ('_moved_before', loss(moved_before)),
      ('_result_on_device', loss(result_on_device)),
      ('_no_compute_on', loss(no_compute_on)),
      ('_indices', lambda s, g: (s[np.array([3, 1, 3])] * 2).sum()))
  def test_where_derivatives_are_computed(self, f):
    # A cotangent is moved once, and what uses it runs where the state is.
    jaxpr = jax.make_jaxpr(jax.grad(f, argnums=(0, 1)))(
        self.state, self.gradient).jaxpr
    moves = 0
    for eqn in equations(jaxpr):
      ins, outs = [{v.aval.memory_space for v in each if v.aval.shape}
                   for each in (eqn.invars, eqn.outvars)]
      if eqn.primitive.name == 'device_put' and HOST in ins | outs:
        self.assertNotEqual(ins, outs)
        moves += 1
      elif eqn.primitive.name in ('compute_on', 'scatter-add'):
        self.assertIn(HOST, ins)
        self.assertNotIn(DEVICE, ins)
    self.assertGreater(moves, 0)

  def test_one_memory_has_no_transfers(self):
    def f(s, g):
      return jnp.sum(on_host(update, DEVICE)(s, jax.device_put(g)))
    text = jax.jit(jax.grad(f, argnums=(0, 1))).lower(
        STATE, GRADIENT).as_text()
    self.assertNotIn('pinned_host', text)

  @red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
       r'argument to VJP function: got float32\[\], but',
       cases=['slice', 'sum'])
  @red(COTANGENT_ON_HOST, cases=['element', 'mean', 'norm'])
  @red(OTHER_MEMORY)
  @parameterized.named_parameters((f'_{n}', f, g) for n, f, g in LOSSES)
  def test_loss_on_the_host(self, f, by_hand):
    for g in (jax.grad(f), jax.jit(jax.grad(f)), jax.grad(jax.jit(f))):
      found = g(self.state)
      self.assertAllClose(np.asarray(found), np.float32(by_hand(STATE)),
                          rtol=1e-5, atol=1e-6)
      self.assertEqual(found.sharding.memory_kind, 'pinned_host')

  @red(OTHER_MEMORY)
  def test_loss_on_the_host_of_many(self):
    def f(row):
      return (row[np.array([1, 1])] ** 2).sum()
    rows = STATE.reshape(2, 4)
    found = jax.jit(jax.vmap(jax.grad(f)))(jax.device_put(rows, HOST))
    expected = np.zeros((2, 4), np.float32)
    expected[:, 1] = 4 * rows[:, 1]
    self.assertAllClose(np.asarray(found), expected)

  @red(COTANGENT_ON_HOST)
  @parameterized.named_parameters(
      ('_one_axis', (8,), ('x',)), ('_two_axes', (4, 2), ('x', 'y')),
      ('_axis_of_size_1', (1, 4), ('x', 'y')))
  def test_loss_on_the_host_over_a_mesh(self, sizes, names):
    mesh = Mesh(np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes), names)
    state = jax.device_put(
        STATE, NamedSharding(mesh, P('x'), memory_kind='pinned_host'))
    found = jax.jit(jax.grad(lambda s: (s ** 2).mean()))(state)
    self.assertAllClose(np.asarray(found), STATE / 4)
    self.assertEqual(found.sharding.memory_kind, 'pinned_host')

  @red(r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
       r'argument to VJP function: got float32\[2\], but')
  def test_jacobian_on_the_host(self):
    def f(s):
      return s[:2] ** 2
    expected = np.diag(2 * STATE)[:2]
    for jacobian in (jax.jacrev(f), jax.jit(jax.jacrev(f))):
      self.assertAllClose(np.asarray(jacobian(self.state)), expected)
    found = jax.hessian(lambda s: (s ** 3).sum())(self.state)
    self.assertAllClose(np.asarray(found), np.diag(6 * STATE))

  def test_forward_derivatives_stay(self):
    with config.enable_checks(False):  # its types don't tell where tangents are
      found = jax.jit(jax.jacfwd(lambda s: s * 2))(self.state)
    self.assertAllClose(np.asarray(found), 2 * np.eye(8, dtype=np.float32))

  @red(OTHER_MEMORY)
  @parameterized.named_parameters(
      ('_index', lambda m: m[np.array([1, 1])], [0, 2, 0, 0, 0, 0, 0, 0]),
      ('_constant', lambda m: m * np.arange(8.), np.arange(8)),
      ('_made_there', lambda m: m * jnp.arange(8.) + jnp.ones(8), np.arange(8)))
  def test_computed_on_the_host(self, f, expected):
    def loss(m):
      return jax.device_put(on_host(f)(m), DEVICE).sum()
    for g in (jax.grad(loss), jax.jit(jax.grad(loss))):
      found = g(self.state)
      self.assertAllClose(np.asarray(found), np.float32(expected))
      self.assertEqual(found.sharding.memory_kind, 'pinned_host')

  def test_indices_on_the_host(self):
    indices = jax.device_put(np.array([3, 1]), HOST)
    found = on_host(lambda x, i: x[i])(self.state, indices)
    self.assertAllClose(np.asarray(found), STATE[[3, 1]])
    self.assertEqual(found.sharding.memory_kind, 'pinned_host')
