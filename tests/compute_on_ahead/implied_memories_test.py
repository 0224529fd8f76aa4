# SPDX-License-Identifier: Apache-2.0
"""An array on the host with what nobody put anywhere (jax#34041)."""

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import compute_on as compute_on_lib
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.sharding import SingleDeviceSharding
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
OTHER_MEMORY = '^ValueError: memory_space of all inputs passed to'
OTHER_MEMORY_NAMED = ('^AssertionError: .*does not match "memory_space of all '
                      'inputs')

HOST, DEVICE = jax.memory.Space.Host, jax.memory.Space.Device
STATE = np.arange(1, 9, dtype=np.float32)
ROWS = STATE.reshape(2, 4)
INDICES = np.array([3, 1, 3])
# Before, the CPU puts results in the device's memory, whatever their type.
CPU_HAS_MEMORIES = jax.__version_info__ >= (0, 10, 2)

# Each a function of an array on the host, and the same of NumPy's.
INDEXED = (
    ('numpy', lambda h: h[INDICES], lambda h: h[INDICES]),
    ('array', lambda h: h[jnp.array(INDICES)], lambda h: h[INDICES]),
    ('take', lambda h: jnp.take(h, jnp.array(INDICES)), lambda h: h[INDICES]),
    ('take_along_axis', lambda h: jnp.take_along_axis(h, jnp.argsort(-h), 0),
     lambda h: h[::-1]),
    ('computed', lambda h: h[jnp.arange(6) // 2],
     lambda h: h[np.arange(6) // 2]),
)
SCALED = (
    ('ones', lambda h: h * jnp.ones(8), lambda h: h),
    ('numpy', lambda h: h * STATE, lambda h: h * h),
    ('iota', lambda h: jnp.arange(8.) * h, lambda h: np.arange(8) * h),
    ('computed', lambda h: h * (jnp.arange(8.) ** 2 - 1),
     lambda h: h * (np.arange(8) ** 2 - 1)),
    ('linspace', lambda h: h * jnp.linspace(0, 7, 8),
     lambda h: h * np.arange(8)),
    ('lax', lambda h: lax.mul(h, jnp.ones(8)), lambda h: h),
    ('loop', lambda h: lax.fori_loop(0, 2, lambda _, c: c * jnp.arange(8.), h),
     lambda h: h * np.arange(8) ** 2),
)
OTHERS = (
    ('added', lambda h: h + jnp.zeros(8), lambda h: h),
    ('where', lambda h: jnp.where(h > 2, h, 0),
     lambda h: np.where(h > 2, h, 0)),
    ('concatenated', lambda h: jnp.concatenate([jnp.zeros(2), h]),
     lambda h: np.concatenate([np.zeros(2), h])),
    ('contracted', lambda h: h @ jnp.ones((8, 3)),
     lambda h: np.full(3, h.sum())),
)


def single(x, device=0):
  return jax.device_put(x, SingleDeviceSharding(
      jax.devices()[device], memory_kind='pinned_host'))


def sharded(x, sizes, names, spec):
  mesh = Mesh(np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes), names)
  return jax.device_put(
      x, NamedSharding(mesh, spec, memory_kind='pinned_host'))


def on_host(f):
  if jax.__version_info__ < (0, 8):  # the context form only
    return compute_on_lib.compute_on('device_host')(jax.jit(f))
  # 0.8 to 0.11.0 call this form compute_on2.
  form = getattr(compute_on_lib, 'compute_on2', compute_on_lib.compute_on)
  return form(f, compute_type='device_host', out_memory_spaces=HOST)


class ImpliedMemoriesTest(jtu.JaxTestCase):

  def assertOnHost(self, f, expected, *args):
    found = [f(*args), f(*args), jax.jit(f)(*args),
             jax.jit(f).lower(*args).compile()(*args)]
    for y in found:
      self.assertAllClose(np.asarray(y), np.asarray(expected, y.dtype),
                          rtol=1e-5)
      if CPU_HAS_MEMORIES:
        self.assertEqual(y.sharding.memory_kind, 'pinned_host')
    out, = jax.make_jaxpr(f)(*args).out_avals
    self.assertEqual(out.memory_space, HOST)

  @red(OTHER_MEMORY)
  @parameterized.named_parameters((f'_{n}', f, g) for n, f, g in INDEXED)
  def test_indexed(self, f, by_hand):
    self.assertOnHost(f, by_hand(STATE), single(STATE))

  @red(OTHER_MEMORY)
  @parameterized.named_parameters(('_uncommitted', False), ('_committed', True))
  def test_indexed_by_an_argument(self, committed):
    indices = jnp.asarray(INDICES)
    if committed:
      indices = jax.device_put(indices, jax.devices()[0])
    self.assertOnHost(lambda h, i: h[i], STATE[INDICES], single(STATE), indices)

  @red(OTHER_MEMORY)
  def test_indexed_by_indices_on_the_host(self):
    x, indices = jnp.asarray(STATE), single(INDICES)
    for f in (lambda x, i: x[i], jax.jit(lambda x, i: x[i])):
      found = f(x, indices)
      self.assertAllClose(np.asarray(found), STATE[INDICES])
      self.assertEqual(found.sharding.memory_kind, 'device')

  @red(OTHER_MEMORY)
  @parameterized.named_parameters((f'_{n}', f, g) for n, f, g in SCALED)
  def test_scaled(self, f, by_hand):
    self.assertOnHost(f, by_hand(STATE), single(STATE))

  @red(OTHER_MEMORY)
  @parameterized.named_parameters((f'_{n}', f, g) for n, f, g in OTHERS)
  def test_others(self, f, by_hand):
    self.assertOnHost(f, by_hand(STATE), single(STATE))

  @red(OTHER_MEMORY)
  @parameterized.named_parameters(
      ('_one_axis', (8,), ('x',), P('x')),
      ('_two_axes', (4, 2), ('x', 'y'), P('x')),
      ('_both_axes', (4, 2), ('x', 'y'), P(('x', 'y'))),
      ('_axis_of_size_1', (1, 4), ('x', 'y'), P('x')),
      ('_one_device', (1,), ('x',), P('x')))
  def test_over_a_mesh(self, sizes, names, spec):
    h = sharded(STATE, sizes, names, spec)
    self.assertOnHost(lambda h: h[jnp.array(INDICES)], STATE[INDICES], h)
    self.assertOnHost(lambda h: h * jnp.arange(8.), STATE * np.arange(8), h)

  @red(OTHER_MEMORY)
  def test_on_another_device(self):
    h = single(STATE, 3)
    found = h * np.ones(8, np.float32)
    self.assertAllClose(np.asarray(found), STATE)
    self.assertEqual(found.devices(), {jax.devices()[3]})

  @red(OTHER_MEMORY)
  def test_mapped(self):
    f = jax.vmap(lambda r, i: r[i] * jnp.arange(3.))
    indices = np.stack([INDICES, INDICES - 1])
    expected = np.stack([r[i] for r, i in zip(ROWS, indices)]) * np.arange(3)
    self.assertOnHost(f, expected, single(ROWS), jnp.asarray(indices))

  @red(OTHER_MEMORY)
  def test_a_function_within(self):
    @jax.jit
    def inner(a, b, c):
      return jnp.where(a > 2, a, b), c * 2
    def f(h):
      return inner(h, jnp.zeros(8), jnp.arange(3.))
    kept, doubled = jax.jit(f)(single(STATE))
    self.assertAllClose(np.asarray(kept), np.where(STATE > 2, STATE, 0))
    self.assertAllClose(np.asarray(doubled), np.float32([0, 2, 4]))
    on_device = jax.make_jaxpr(f)(single(STATE)).out_avals[1]
    self.assertEqual(on_device.memory_space, DEVICE)

  @red(OTHER_MEMORY)
  def test_called_again_with_others(self):
    h, ones = single(STATE), jnp.ones(8)
    for x in (ones, ones, np.ones(8, np.float32), ones):
      self.assertAllClose(np.asarray(h * x), STATE)
      self.assertAllClose(np.asarray(ones * x), np.ones(8, np.float32))
      self.assertAllClose(np.asarray(h * h), STATE * STATE)
      self.assertEqual((ones * x).sharding.memory_kind, 'device')

  @red(OTHER_MEMORY)
  def test_called_again_moves_again(self):
    # The fast path of jit, in C++, would hand on what isn't moved.
    h, ones = single(STATE), jnp.ones(8)
    jax.block_until_ready((h * ones, h * h))
    with jtu.count_pjit_cpp_cache_miss() as count:
      jax.block_until_ready((h * ones, h * h))
    self.assertEqual(count() if callable(count) else count[0], 1)

  @red('^ValueError: Memory kind mismatch with xla::PjRtBuffers')
  @parameterized.named_parameters(
      ('_zeros_like', jnp.zeros_like, 0), ('_ones_like', jnp.ones_like, 1),
      ('_full', lambda h: jnp.full(8, 3., device=h.sharding), 3))
  def test_made_on_the_host(self, f, value):
    for h in (single(STATE), sharded(STATE, (4, 2), ('x', 'y'), P('x'))):
      found = f(h)
      self.assertAllClose(np.asarray(found), np.full(8, value, np.float32))
      self.assertEqual(found.sharding, h.sharding)
      self.assertAllClose(np.asarray(found + h), value + STATE)

  # Two that were placed.

  def assertNamed(self, f, *args):
    with self.assertRaisesRegex(
        ValueError, r'(?s)memory_space of all inputs passed to `\w+` must be '
        r'the same\. Got one operand with type: .* and another operand with '
        r'type: .*operand [01], .* is in jax\.memory\.Space\.Host.*Move one of '
        r'them: jax\.device_put\(.*, jax\.memory\.Space\.Device\)') as caught:
      f(*args)
    return str(caught.exception)

  @red(OTHER_MEMORY_NAMED)
  def test_two_places_named(self):
    # Of a size of its own: before 0.10.2 calls with a memory in the type only
    # share what `jit` keeps with others.
    h, x = single(STATE[:5]), jax.device_put(STATE[:5], jax.devices()[0])
    message = self.assertNamed(lambda: h * x)
    self.assertIn('operand 1, an array float32[5], is in '
                  'jax.memory.Space.Device', message)

  @red(OTHER_MEMORY_NAMED)
  def test_two_arguments_named(self):
    def step(state, gradient):
      return state + gradient
    message = self.assertNamed(jax.jit(step), single(STATE), jnp.asarray(STATE))
    self.assertIn('the argument state float32<host>[8] of step', message)
    self.assertIn('jax.device_put(state, jax.memory.Space.Device)', message)
    self.assertIn('jax.device_put(gradient, jax.memory.Space.Host)', message)

  @red(OTHER_MEMORY_NAMED)
  def test_put_on_the_device_named(self):
    def f(h):
      return h * jax.device_put(jnp.ones(8), DEVICE)
    message = self.assertNamed(jax.jit(f), single(STATE))
    self.assertIn('the result float32[8] of `device_put`', message)

  @red(OTHER_MEMORY_NAMED)
  def test_state_and_gradient_named(self):
    def step(state, w):
      gradient = jax.grad(lambda w: (w ** 2).sum())(w)
      return on_host(lambda m, g: m + g)(state, gradient)
    message = self.assertNamed(jax.jit(step), single(STATE), jnp.asarray(STATE))
    self.assertIn('jax.device_put(m, jax.memory.Space.Device)', message)
    self.assertIn('jax.device_put(g, jax.memory.Space.Host)', message)

  # What JAX accepts stays.

  def test_nothing_is_moved(self):
    @jax.jit
    def f(h, x):
      return h * 2 + h.max(), x * 2, h[1:3], h.at[jnp.array([1])].set(0.)
    args = single(STATE), jnp.asarray(STATE)
    jaxpr = jax.make_jaxpr(f)(*args)
    self.assertNotIn('device_put', str(jaxpr))
    self.assertEqual([a.memory_space for a in jaxpr.out_avals],
                     [HOST, DEVICE, HOST, HOST])
    self.assertAllClose(np.asarray(f(*args)[0]), STATE * 2 + 8)
