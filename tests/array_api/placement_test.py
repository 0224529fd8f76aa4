# SPDX-License-Identifier: Apache-2.0
"""Creation functions put an array where device= says (jax#27606)."""

from absl.testing import parameterized
import array_api_compat
import jax
from jax import sharding as js
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red
from testing.sharding import AxisType, eight_devices, typed_mesh

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
INCOMPATIBLE_DEVICES = ('^ValueError: Received incompatible devices for '
                        'jitted computation')
NOT_AUTO_AXES = (r'^ValueError: PartitionSpec passed to jnp\.broadcast_to '
                 'cannot contain axis names that are of type')
COPIES = '^AssertionError: .*copy=False forbids one. does not match'
OF_RANK_0 = '^ValueError: .*only valid for values of rank at least 1'

HOST = np.arange(8, dtype=np.float32)
P = js.PartitionSpec
# Before, fill values were put on the device, under jit as well.
FILLS_ARE_CONSTRAINED = jax.__version_info__ >= (0, 10, 2)
# From 0.6.1 to 0.6.2 the remainder of a complex number was refused.
COMPLEX_FREQUENCIES = not (0, 6, 1) <= jax.__version_info__ < (0, 7)

# What a committed array, or part of one, is made into.
MOVES = {
    'asarray': (lambda x, d: jnp.asarray(x, device=d), HOST),
    'asarray_copy': (lambda x, d: jnp.asarray(x, device=d, copy=True), HOST),
    'array': (lambda x, d: jnp.array(x, 'int32', device=d),
              HOST.astype('int32')),
    'array_of_list': (
        lambda x, d: jnp.array([x + i for i in range(8)], device=d),
        HOST + HOST[:, None]),
    'astype': (lambda x, d: jnp.astype(x, 'int16', device=d),
               HOST.astype('int16')),
    'method_astype': (lambda x, d: x.astype('int16', device=d),
                      HOST.astype('int16')),
    'linspace': (lambda x, d: jnp.linspace(x, x + 7, 8, device=d),
                 HOST + HOST[:, None]),
    'linspace_retstep': (
        lambda x, d: jnp.linspace(0 * x, x, 8, axis=1, retstep=True,
                                  device=d)[0],
        np.linspace(0 * HOST, HOST, 8, axis=1)),
}

# Of an array of fill values.
FILLS = {
    'full': lambda d: jnp.full((8, 8), HOST, device=d),
    'full_like': lambda d: jnp.full_like(np.ones((8, 8), 'int8'), HOST,
                                         device=d),
    'full_like_of_jax_array': lambda d: jnp.full_like(
        jnp.ones((8, 8)), jnp.asarray(HOST), device=d),
}


def mesh(*shape, explicit=False):
  names = ('x', 'y')[:len(shape)]
  kind = AxisType.Explicit if explicit else AxisType.Auto
  return typed_mesh(shape, names, (kind,) * len(shape))


def names_in(jaxpr):
  """The names of a jaxpr's primitives (0.9 can't print all of their types)."""
  return {e.primitive.name for e in jaxpr.eqns}.union(
      *(names_in(j) for e in jaxpr.eqns
        for j in core.jaxprs_in_params(e.params)))


def shardings(explicit=False):
  split = [js.NamedSharding(mesh(8, explicit=explicit), P('x')),
           js.NamedSharding(mesh(2, 4, explicit=explicit), P('y')),
           js.NamedSharding(mesh(2, 4, explicit=explicit), P(('x', 'y')))]
  return split if explicit else [*split, js.NamedSharding(mesh(2, 3), P())]


class ArrayApiPlacementTest(jtu.JaxTestCase):

  def check(self, x, want, device):
    if isinstance(device, jax.Device):
      self.assertIs(x.device, device)
    else:
      self.assertEqual(x.sharding.device_set, device.device_set,
                       'placed elsewhere')
      self.assertTrue(x.sharding.is_equivalent_to(device, x.ndim),
                      f'placed elsewhere: {x.sharding}')
    self.assertTrue(x.committed)
    np.testing.assert_allclose(x, want, rtol=1e-6)

  @red(INCOMPATIBLE_DEVICES)
  @parameterized.parameters(*MOVES)
  def test_moves_between_devices(self, name):
    make, want = MOVES[name]
    targets = [jax.devices()[0], jax.devices()[5],
               js.SingleDeviceSharding(jax.devices()[6]), *shardings()]
    for home in (jax.devices()[3], js.NamedSharding(mesh(4), P('x'))):
      x = jax.device_put(HOST, home)
      for device in targets:
        self.check(make(x, device), want, device)

  @red('^ValueError: .*can only refer to Auto axes')
  @parameterized.parameters(*MOVES)
  def test_explicit_axes(self, name):
    make, want = MOVES[name]
    for device in shardings(explicit=True):
      for x in (jnp.asarray(HOST), jax.device_put(HOST, jax.devices()[3])):
        self.check(make(x, device), want, device)

  @red(NOT_AUTO_AXES, bases='>=0.10.2')
  @parameterized.parameters(*FILLS)
  def test_array_of_fill_values(self, name):
    want = np.broadcast_to(HOST, (8, 8))
    for device in shardings() + shardings(explicit=True):
      self.check(FILLS[name](device), want, device)

  @red(OF_RANK_0)
  @parameterized.parameters(8, 16)
  def test_fftfreq(self, n):
    for device in shardings() + shardings(explicit=True):
      self.check(jnp.fft.fftfreq(n, 0.5, device=device),
                 np.fft.fftfreq(n, 0.5), device)
      if COMPLEX_FREQUENCIES:
        x = jnp.fft.fftfreq(n, device=device, dtype='complex64')
        self.assertEqual(x.dtype, 'complex64')

  @red('^ValueError: .*can only unpack a dlpack tensor onto a singular device')
  @parameterized.parameters(None, True)
  def test_from_dlpack(self, copy):
    for device in shardings() + shardings(explicit=True):
      for x in (HOST, jnp.asarray(HOST),
                jax.device_put(HOST, jax.devices()[2])):
        self.check(jnp.from_dlpack(x, device=device, copy=copy), HOST, device)

  @red(COPIES)
  def test_from_dlpack_without_a_copy(self):
    for device in shardings():
      with self.assertRaisesRegex(ValueError, 'copy=False forbids one'):
        jnp.from_dlpack(HOST, device=device, copy=False)

  @red(COPIES)
  def test_asarray_without_a_copy(self):
    x = jax.device_put(HOST, jax.devices()[3])
    for device in (jax.devices()[0], *shardings()):
      with self.assertRaisesRegex(ValueError, 'copy=False forbids one'):
        jnp.asarray(x, device=device, copy=False)
    for device in (None, jax.devices()[3]):
      self.check(jnp.asarray(x, device=device, copy=False), HOST,
                 jax.devices()[3])

  def test_without_a_device_nothing_moves(self):
    for home in (jax.devices()[3], *shardings()):
      x = jax.device_put(HOST, home)
      for make in (jnp.asarray, jnp.array, lambda x: x.astype('int8')):
        self.check(make(x), HOST, home)

  def test_under_jit_constraints_stay(self):
    # What was traced before is traced the same: no device_put in its place.
    for device in (jax.devices()[0], *shardings()):
      for x in (HOST, jax.device_put(HOST, jax.devices()[0])):
        names = names_in(jax.make_jaxpr(lambda y, x=x, device=device: (
            jnp.asarray(x, device=device) + jnp.asarray(y, device=device)))(
                HOST).jaxpr)
        self.assertNotIn('device_put', names)
        self.assertIn('sharding_constraint', names)

  @red(NOT_AUTO_AXES, bases='>=0.10.2')
  def test_fill_values_under_jit(self):
    for name, make in FILLS.items():
      for device in shardings():
        got = jax.jit(lambda make=make, device=device: make(device))()
        np.testing.assert_array_equal(got, np.broadcast_to(HOST, (8, 8)), name)

  def test_replicated_fill_values_of_a_program(self):
    # Of an array on one device, these are left to jit, as zeros are.
    make = {
        'full': lambda x, d: jnp.full((8, 8), x, device=d),
        'full_like': lambda x, d: jnp.full_like(
            np.zeros((8, 8), 'float32'), x, device=d)}
    if not FILLS_ARE_CONSTRAINED:
      return
    for name, f in make.items():
      for m in (mesh(8), mesh(2, 4), mesh(1, 4)):
        for spec in (P(), P(None, None)):
          device = js.NamedSharding(m, spec)
          g = lambda x, f=f, d=device: (f(x, d) * x[None]).sum()
          for home in (jax.devices()[0], jax.devices()[3]):
            x = jax.device_put(HOST, home)
            y = jax.jit(lambda x, f=f, d=device: f(x, d))(x)
            np.testing.assert_array_equal(y, np.broadcast_to(HOST, (8, 8)))
            np.testing.assert_array_equal(
                jax.jit(jax.grad(g))(x), 16 * HOST, name)
            np.testing.assert_array_equal(jax.lax.map(
                lambda x, f=f, d=device: f(x, d)[0], x[None]), HOST[None])
          x = jnp.asarray(HOST)
          np.testing.assert_array_equal(jax.grad(g)(x), 16 * HOST, name)
          np.testing.assert_array_equal(
              jax.grad(lambda x, g=g: jax.grad(g)(x).sum())(x), np.full(8, 16.))

  def test_fill_values_mapped_on_explicit_axes(self):
    if not FILLS_ARE_CONSTRAINED:
      return
    for device in shardings(explicit=True):
      x = jax.device_put(np.stack([HOST, HOST]),
                         js.NamedSharding(device.mesh, P()))
      f = lambda x, d=device: jnp.full((8, 8), x, device=d)
      want = np.broadcast_to(HOST, (2, 8, 8))
      np.testing.assert_array_equal(jax.vmap(f)(x), want)
      np.testing.assert_array_equal(jax.jit(jax.vmap(f))(x), want)

  @red(OF_RANK_0)
  def test_other_functions_under_jit(self):
    for device in shardings():
      np.testing.assert_allclose(
          jax.jit(lambda d=device: jnp.fft.fftfreq(8, device=d))(),
          np.fft.fftfreq(8))
      np.testing.assert_array_equal(
          jax.jit(lambda d=device: jnp.from_dlpack(HOST, device=d))(), HOST)

  def test_gradients_pass_through(self):
    for device in (jax.devices()[2], *shardings()):
      grad = jax.grad(lambda x, d=device: (
          jnp.asarray(x, device=d) ** 2).sum())(jnp.asarray(HOST))
      np.testing.assert_array_equal(grad, 2 * HOST)

  @red(INCOMPATIBLE_DEVICES)
  def test_array_api_compat_follows_an_array(self):
    for home in (jax.devices()[3], *shardings(), *shardings(explicit=True)):
      x = array_api_compat.to_device(jnp.asarray(HOST), home)
      xp, device = array_api_compat.array_namespace(x), (
          array_api_compat.device(x))
      for y, want in (
          (xp.asarray(HOST, device=device), HOST),
          (xp.asarray(jax.device_put(HOST, jax.devices()[1]), device=device),
           HOST),
          (xp.full(8, 3., device=device), np.full(8, 3.)),
          (xp.full((8,), HOST, device=device), HOST),
          (xp.linspace(0, 7, 8, device=device), HOST),
          (xp.fft.rfftfreq(14, device=device), np.fft.rfftfreq(14)),
          (xp.from_dlpack(HOST, device=device), HOST)):
        self.check(y, want, home)
