# SPDX-License-Identifier: Apache-2.0
"""x.device while x is traced (jax#26000)."""
import copy
import pickle
import subprocess
import sys

from absl.testing import parameterized
import array_api_compat
import jax
from jax import export
from jax import sharding as js
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import columns, eight_devices, shard_map

jax.config.parse_flags_with_absl()
eight_devices()

HOST = np.arange(8, dtype=np.float32)
HOST_MEMORY = ('pinned_host' if jax.__version_info__ >= (0, 10) else
               'unpinned_host')  # The only one of a CPU before.
TOKEN = '<device: where the program runs>'
P = js.PartitionSpec


def mesh(*shape):
  devices = np.array(jax.devices()[:int(np.prod(shape))]).reshape(shape)
  return js.Mesh(devices, ('x', 'y')[:len(shape)])


def program(x):
  """A program that uses x.device as the standard says; of NumPy, without it."""
  if isinstance(x, np.ndarray):
    return float(sum((x * x + 2 * x + i).sum() for i in range(3)))
  xp = array_api_compat.array_namespace(x)
  d = x.device
  n = x.shape[0]
  y = (x * xp.asarray(x, device=d) + xp.full(n, 2., device=d) * x
       + xp.zeros(n, device=d) * xp.ones_like(x, device=d))
  z = xp.sum(y + xp.astype(xp.zeros(n, dtype='int32', device=d), 'float32',
                           device=d))
  z = z + xp.sum(y + xp.linspace(1, 1, n, device=d))
  z = z + xp.sum(y + xp.asarray(np.full(n, 2, 'float32'), device=d))
  z = z + 0 * (xp.sum(xp.arange(0., n, device=d))
               + xp.sum(xp.eye(n, device=d)))
  z = z + 0 * xp.sum(xp.full_like(x, 1, device=d) + xp.empty(n, device=d) * 0)
  z = z + 0 * xp.sum(xp.fft.fftfreq(n, device=d))
  x.to_device(d), jax.device_put(x, d)
  return z + 0 * array_api_compat.to_device(x, array_api_compat.device(x))[0]


def homes():
  return {'uncommitted': jnp.asarray(HOST),
          'device': jax.device_put(HOST, jax.devices()[3]),
          'mesh': jax.device_put(HOST, js.NamedSharding(mesh(4), P('x'))),
          'mesh2': jax.device_put(HOST, js.NamedSharding(mesh(2, 2), P('y')))}


# Transformation: what runs `f` on `x` and gives f(x), and whether the arrays
# are at hand below it.
WAYS = {
    'jit': (lambda f, x: jax.jit(f)(x), False),
    'grad': (lambda f, x: jax.value_and_grad(f)(x)[0], True),
    'jit_grad': (lambda f, x: jax.jit(jax.value_and_grad(f))(x)[0], False),
    'grad_jit': (lambda f, x: jax.value_and_grad(jax.jit(f))(x)[0], False),
    'jvp': (lambda f, x: jax.jvp(f, (x,), (x,))[0], True),
    'linearize': (lambda f, x: jax.linearize(f, x)[0], True),
    'vjp': (lambda f, x: jax.vjp(f, x)[0], True),
    'scan': (lambda f, x: jax.lax.scan(
        lambda c, _: (c, f(c)), x, None, length=2)[1][1], False),
    'cond': (lambda f, x: jax.lax.cond(x.max() > 0, f, lambda x: 0., x), False),
    'while': (lambda f, x: jax.lax.while_loop(
        lambda c: c[0] < 1, lambda c: (c[0] + 1, f(c[1]) + 0 * c[1]),
        (0, x))[1][0], False),
    'checkpoint': (lambda f, x: jax.checkpoint(f)(x), False),
    'aot': (lambda f, x: jax.jit(f).lower(x).compile()(x), False),
}


@red('^AttributeError: .*has no attribute device', api_missing=True)
class ArrayApiTracedDeviceTest(jtu.JaxTestCase):

  def run_and_see(self, way, x):
    seen = []
    def f(x):
      seen.append(x.device)
      return program(x)
    return way(f, x), seen

  @parameterized.parameters(*WAYS)
  def test_the_program_runs(self, name):
    way, at_hand = WAYS[name]
    for home, x in homes().items():
      if home.startswith('mesh') and name != 'jit':
        # Where the answer is a sharding, it is for shapes like that of x, as
        # without the transformation; see test_committed_arrays_answer.
        continue
      got, seen = self.run_and_see(way, x)
      np.testing.assert_allclose(got, program(HOST), rtol=1e-5)
      self.assertTrue(seen)

  def test_vmap(self):
    rows = np.arange(24, dtype=np.float32).reshape(3, 8)
    want = [program(row) for row in rows]
    here, there = jnp.asarray(rows), jax.device_put(rows, jax.devices()[3])
    for f, x in ((jax.vmap(program), there),
                 (jax.jit(jax.vmap(program)), here),
                 (jax.jit(jax.vmap(program)), there),
                 (jax.vmap(jax.jit(program)), here),
                 (jax.jit(jax.vmap(
                     lambda x: jax.value_and_grad(program)(x)[0])), here)):
      np.testing.assert_allclose(f(x), want, rtol=1e-5)

  @parameterized.parameters((4,), (2, 2))
  def test_shard_map(self, *shape):
    m = mesh(*shape)
    names = m.axis_names
    def f(x):
      d = x.device
      return x * jnp.full(x.shape, 2., device=d) + jnp.asarray(1., device=d)
    g = shard_map(f, mesh=m, in_specs=P(names), out_specs=P(names))
    for run in (g, jax.jit(g)):
      np.testing.assert_array_equal(run(jnp.asarray(HOST)), 2 * HOST + 1)

  def test_eval_shape(self):
    out = jax.eval_shape(program, jax.ShapeDtypeStruct((8,), 'float32'))
    self.assertEqual(out.shape, ())

  def test_gradient_and_hessian(self):
    # Without jit each operation is compiled for the array's device, so there
    # the Hessian is a smaller program's.
    eye = np.eye(8, dtype='float32')
    here, there = jnp.asarray(HOST), jax.device_put(HOST, jax.devices()[3])
    slope, hessian = jax.jit(lambda x: (
        jax.grad(program)(x), jax.hessian(program)(x)))(here)
    np.testing.assert_allclose(slope, 6 * HOST + 6)
    np.testing.assert_allclose(hessian, 6 * eye)
    np.testing.assert_allclose(jax.grad(program)(there), 6 * HOST + 6)
    square = lambda x: (x * x * jnp.full(8, 2., device=x.device)).sum()
    np.testing.assert_allclose(jax.hessian(square)(there), 4 * eye)

  @parameterized.parameters(*WAYS)
  def test_arrays_at_hand_answer(self, name):
    way, at_hand = WAYS[name]
    for x in homes().values():
      seen = []
      def f(x):
        seen.append(x.device)
        return x.sum()
      way(f, x)
      for device in seen:
        if at_hand:
          self.assertEqual(device, x.device)
          self.assertIs(type(device), type(x.device))
        else:
          self.assertEqual(repr(device), TOKEN)

  def test_element_of_a_batch(self):
    seen = []
    def f(x):
      seen.append(x.device)
      return x
    x = jax.device_put(np.ones((8, 3), 'float32'), jax.devices()[3])
    jax.vmap(f)(x)
    jax.vmap(jax.grad(lambda x: f(x).sum()))(x)
    self.assertEqual(seen, [jax.devices()[3]] * 2)
    jax.vmap(f)(jax.device_put(x, js.NamedSharding(mesh(8), P('x'))))
    self.assertEqual(repr(seen[-1]), TOKEN)

  def token(self):
    seen = []
    jax.make_jaxpr(lambda x: seen.append(x.device))(HOST)
    return seen[0]

  def test_token(self):
    token = self.token()
    self.assertEqual(token, token)
    self.assertIs(self.token(), token)
    self.assertEqual({token: 1}[token], 1)
    self.assertNotEqual(token, None)
    self.assertEqual(repr(token), TOKEN)
    self.assertIs(pickle.loads(pickle.dumps(token)), token)
    self.assertIs(copy.deepcopy(token), token)

  def test_shape_of_what_runs_where_the_program_does(self):
    plain, g = jax.ShapeDtypeStruct((8,), 'float32'), jax.jit(lambda x: x * 2)
    def f(x):
      shape = jax.ShapeDtypeStruct(
          (8,), 'float32', sharding=js.SingleDeviceSharding(x.device))
      self.assertEqual((shape, hash(shape)), (plain, hash(plain)))
      self.assertEqual(export.export(g)(shape).mlir_module(),
                       export.export(g)(plain).mlir_module())
      np.testing.assert_array_equal(g.lower(shape).compile()(HOST), 2 * HOST)
      return x.sum()
    x = jnp.asarray(HOST)
    for way in (jax.jit, lambda f: jax.jit(jax.grad(f)), jax.make_jaxpr):
      way(f)(x)

  def test_token_places_like_none(self):
    token = self.token()
    info = jnp.__array_namespace_info__()
    self.assertEqual(info.dtypes(device=token), info.dtypes())
    self.assertEqual(info.default_dtypes(device=token), info.default_dtypes())
    x = jax.device_put(HOST, jax.devices()[3])
    with jax.default_device(jax.devices()[5]):
      for make in (lambda d: jnp.zeros(3, device=d),
                   lambda d: jnp.empty(3, device=d),
                   lambda d: jnp.asarray(HOST, device=d),
                   lambda d: jnp.asarray(x, device=d),
                   lambda d: jnp.from_dlpack(HOST, device=d),
                   lambda d: jnp.full((8,), HOST, device=d),
                   lambda d: jnp.zeros_like(x, device=d),
                   lambda d: jnp.fft.rfftfreq(8, device=d),
                   lambda d: x.to_device(d),
                   lambda d: jax.device_put(HOST, d),
                   lambda d: jax.device_put([x, HOST], [d, d])[1],
                   lambda d: jax.device_put((x, HOST), d)[1]):
        want, got = make(None), make(token)
        self.assertEqual(got.devices(), want.devices())
        self.assertEqual(got.committed, want.committed)
        np.testing.assert_array_equal(got, want)

  def placed(self, device):
    """An array, by whatever else takes devices or shardings."""
    one = js.SingleDeviceSharding(device)
    # pylint: disable-next=g-import-not-at-top
    from jax.experimental import serialize_executable
    x, y = jnp.ones(3), np.ones((3, 2), np.float32)
    yield jax.make_array_from_single_device_arrays((3,), one, [x])
    yield jax.device_put(y, columns(2, one))
    compiled = jax.jit(lambda x: x + 1, in_shardings=columns(2, one),
                       out_shardings=columns(2, one)).lower(y).compile()
    yield compiled(jax.device_put(y, columns(2, one)))
    yield from self.placed_by_pmap(device, y)
    if hasattr(config, 'pmap_shmap_merge'):
      with config.pmap_shmap_merge(False):
        found = [*self.placed_by_pmap(device, y)]
      yield from found
    if jax.__version_info__ >= (0, 6, 1):
      stored = serialize_executable.serialize(jax.jit(
          lambda x: x + 1).lower(x).compile())
      yield serialize_executable.deserialize_and_load(
          *stored, execution_devices=[device])(x)

  def placed_by_pmap(self, device, y):
    yield jax.pmap(lambda x: x + 1, devices=[device])(y[None])
    if jax.__version_info__ < (0, 10):
      yield jax.device_put_replicated(y, [device])
      yield jax.device_put_sharded([y], [device])

  def test_token_that_left_its_program(self):
    token = self.token()
    jax.clear_caches()  # They can't tell a token from the device.
    got = [*self.placed(token)]
    for x, y in zip(got, self.placed(jax.devices()[0]), strict=True):
      self.assertTrue(x.sharding.is_equivalent_to(y.sharding, x.ndim))
      np.testing.assert_array_equal(x, y)
    a, b = map(js.SingleDeviceSharding, (token, jax.devices()[0]))
    self.assertTrue(a.is_equivalent_to(b, 1))
    self.assertTrue(b.is_equivalent_to(a, 1))

  def test_token_that_lasts(self):
    token, first = self.token(), jax.devices()[0]
    with jax.default_device(token):
      self.assertIs(jax.config.jax_default_device, first)
    jax.config.update('jax_default_device', token)
    try:
      self.assertIs(jax.config.jax_default_device, first)
    finally:
      jax.config.update('jax_default_device', None)
    jax.clear_caches()
    there = js.NamedSharding(js.Mesh([token], ('x',)), P('x'))
    self.assertIs(there.mesh.devices[0], first)
    np.testing.assert_array_equal(jax.device_put(HOST, there) + 1, HOST + 1)

  def test_tree_of_devices(self):
    x, y = jax.device_put([HOST, HOST], [jax.devices()[3], self.token()])
    self.assertEqual(x.devices(), {jax.devices()[3]})
    self.assertFalse(y.committed)

  def test_no_retrace_for_another_device(self):
    counts = []
    for ask in (False, True):
      count = []
      def f(x):
        count.append(x.device if ask else None)
        return x + jnp.zeros(8, device=x.device if ask else None)
      run = jax.jit(f)
      for d in (*jax.devices()[::3], js.NamedSharding(mesh(8), P('x'))):
        y = run(jax.device_put(HOST, d))
        self.assertEqual(y.device, d)
      counts.append(len(count))
    # A type names the mesh that an array is spread over, so that is one more.
    self.assertEqual(counts[1], counts[0])
    self.assertLessEqual(counts[1], 2)

  @parameterized.parameters('jit_grad', 'scan')
  def test_no_leaks(self, name):
    f = lambda x: (x * jnp.zeros(8, device=x.device) + x).sum()
    with jax.checking_leaks():
      WAYS[name][0](f, jax.device_put(HOST, jax.devices()[3]))

  def test_same_program_as_without_a_device(self):
    def f(x, d):
      return jnp.zeros(8, device=d) + jnp.asarray(x, device=d) + jnp.arange(
          8., device=d) + jnp.linspace(0, 1, 8, device=d)
    self.assertEqual(str(jax.make_jaxpr(lambda x: f(x, x.device))(HOST)),
                     str(jax.make_jaxpr(lambda x: f(x, None))(HOST)))

  def test_constant_moves_to_what_is_differentiated(self):
    c = jax.device_put(HOST, jax.devices()[5])
    x = jax.device_put(HOST, jax.devices()[3])
    f = lambda x: (x * jnp.asarray(c, device=x.device)).sum()
    np.testing.assert_array_equal(jax.grad(f)(x), HOST)
    np.testing.assert_array_equal(jax.vmap(
        lambda x: (x * jnp.asarray(c, device=x.device)).sum())(x[None]),
        [(HOST * HOST).sum()])


def device_of(x):
  return getattr(x, 'device', None)


def attributes(d):
  memory = d.default_memory().kind
  assert d.memory(memory).kind == memory
  return (d.platform, d.id, d.device_kind, d.process_index, d.host_id,
          d.client.platform, d.local_hardware_id, str(d),
          len(d.addressable_memories()))


# What code does with x.device, unless that is None.
GUARDED = {
    'attributes': lambda x, d: (
        x + 0 * len(attributes(d)) if d.platform == 'cpu' else 3 * x),
    'backends': lambda x, d: x + 0 * len(
        jax.devices(d.platform) + jax.local_devices(backend=d.platform)),
    'isinstance': lambda x, d: x if isinstance(d, jax.Device) else 2 * x,
    'listed': lambda x, d: x + (
        0 if d in jax.devices() and {d: 1}[jax.devices()[
            jax.devices().index(d)]] and {d} <= set(jax.devices()) else 1),
    'device_put': lambda x, d: x + jax.device_put(0 * HOST, d),
    'device_put_tree': lambda x, d: x + jax.device_put(
        [0 * HOST, HOST], [d, None])[0],
    'single': lambda x, d: x + jax.device_put(
        0 * HOST, js.SingleDeviceSharding(d)),
    'created': lambda x, d: x + jnp.zeros(8, device=js.SingleDeviceSharding(d)),
    'memory': lambda x, d: x + 0 * jax.device_put(
        x, js.SingleDeviceSharding(d, memory_kind=HOST_MEMORY)).ndim,
    'constraint': lambda x, d: jax.lax.with_sharding_constraint(
        [x, x], [js.SingleDeviceSharding(d)] * 2)[0],
    'jit': lambda x, d: jax.jit(
        lambda x: x + 0, out_shardings=js.SingleDeviceSharding(d))(x),
    'mesh': lambda x, d: x + 0 * js.Mesh([d], ('x',)).devices[0].id,
    'lower': lambda x, d: x + 0 * len(jax.jit(lambda x: x).lower(
        jax.ShapeDtypeStruct((8,), 'float32', sharding=js.SingleDeviceSharding(
            d))).compile().as_text()),
    'from_callback': lambda x, d: x + 0 * jax.make_array_from_callback(
        (8,), js.SingleDeviceSharding(d), lambda index: HOST[index]).ndim,
    'same': lambda x, d: x if d == device_of(x + 1) and not (
        d != device_of(x * 2)) and len({d, device_of(x)}) == 1 else 2 * x,
}


def with_default_device(x, d):
  with jax.default_device(d):
    return x + jnp.zeros(8)


GUARDED['default_device'] = with_default_device


class ArrayApiNoTracedDeviceTest(jtu.JaxTestCase):

  @parameterized.parameters(*GUARDED)
  def test_guarded(self, name):
    use = GUARDED[name]
    def f(x):
      d = device_of(x)
      return x if d is None else use(x, d)
    for home, x in homes().items():
      for outer in ('jit', 'grad', 'jit_grad', 'scan', 'aot'):
        way, at_hand = WAYS[outer]
        if at_hand and home.startswith('mesh'):
          continue  # There x.device is a sharding, as without a transformation.
        got = way(lambda x: f(x).sum(), x)
        self.assertEqual(float(got), HOST.sum(), f'{home} {outer}')
      for way in (jax.vmap, lambda f: jax.jit(jax.vmap(f))):
        if not home.startswith('mesh'):
          np.testing.assert_array_equal(way(f)(x[None]), HOST[None])

  def test_two_arrays(self):
    # As scikit-learn compares them.
    def f(x, y):
      if device_of(x) != device_of(y):
        raise ValueError('Input arrays use different devices.')
      return (x * y).sum()
    x = jnp.asarray(HOST)
    for run in (jax.grad(f, (0, 1)), jax.jit(jax.grad(f, (0, 1)))):
      np.testing.assert_array_equal(run(x, x + 1)[0], HOST + 1)
    np.testing.assert_array_equal(jax.vmap(f)(x[None], x[None]),
                                  [(HOST * HOST).sum()])

  def test_no_backend_for_the_answer(self):
    # jax.distributed.initialize comes first, though shapes may be asked for.
    code = (
        "import jax; jax.eval_shape(lambda x: x if getattr(x, 'device', 0) is"
        " None else x * 2, jax.ShapeDtypeStruct((3,), 'float32'));"
        "from jax._src import xla_bridge; assert not xla_bridge._backends")
    subprocess.run([sys.executable, '-c', code], check=True)

  def test_what_is_no_array_has_no_device(self):
    for attribute in ('sharding', 'addressable_data'):
      with self.assertRaises((AttributeError, TypeError)):
        jax.make_jaxpr(lambda x: getattr(x, attribute)())(HOST)
