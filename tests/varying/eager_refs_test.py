# SPDX-License-Identifier: Apache-2.0
"""Refs in a shard_map that isn't under jax.jit, and captured ones that is."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
REF_REFUSED = '^AssertionError: a ref is refused: '

new_ref = (getattr(core, 'new_ref', None) or getattr(core, 'array_ref', None)
           or core.mutable_array)

MESHES = {'line': ((4,), ('x',)), 'square': ((2, 2), ('x', 'y')),
          'one': ((1,), ('x',))}


def make_mesh(kind):
  shape, names = MESHES[kind]
  return Mesh(np.array(jax.devices()[:np.prod(shape)]).reshape(shape), names)


def sharded(f, mesh, in_specs=P('x'), out_specs=P('x'), check=True):
  return jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs,
                       check_vma=check)


class EagerRefsTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.x = np.arange(8, dtype=np.float32)

  def run_or_fail(self, f, *args):
    try:
      return f(*args)
    except Exception as e:  # of which some are an AssertionError without words
      raise AssertionError(f'a ref is refused: {type(e).__name__}: {e}') from e

  def assert_refused(self, words, f):
    with self.assertRaises(Exception) as caught:
      sharded(f, make_mesh('line'))(self.x)
    self.assertIn(words, str(caught.exception))

  @red(REF_REFUSED)
  @parameterized.product(kind=list(MESHES), check=(True, False))
  def test_made_inside(self, kind, check):
    def f(x):
      ref = new_ref(x)
      def body(c, y):
        ref[...] += y
        return c, None
      lax.scan(body, 0., jnp.array([1., 2.]))
      ref[...] = 2. * ref[...]
      return ref[...]
    got = self.run_or_fail(sharded(f, make_mesh(kind), check=check), self.x)
    self.assertAllClose(got, 2. * (self.x + 3.))

  @red(REF_REFUSED)
  @parameterized.product(kind=list(MESHES), placed=(True, False))
  def test_passed(self, kind, placed):
    mesh = make_mesh(kind)
    spread = NamedSharding(mesh, P('x'))
    ref = new_ref(jax.device_put(self.x, spread) if placed
                  else jnp.asarray(self.x))
    def f(ref, x):
      ref[...] += 3. * x
      return x + 1.
    f = sharded(f, mesh, (P('x'), P('x')))
    for n in (1, 2):  # the second call has another content
      self.assertAllClose(self.run_or_fail(f, ref, self.x), self.x + 1.)
      self.assertAllClose(ref[...], (1. + 3. * n) * self.x)

  @red("^AssertionError: a ref is refused: AttributeError: 'AbstractRef' "
       "object has no attribute 'nospec'", bases='>=0.9.2', cases={'jit': True})
  @red(REF_REFUSED, cases={'jit': False})
  @parameterized.product(kind=('line', 'square'), check=(True, False),
                         jit=(False, True))
  def test_captured(self, kind, check, jit):
    mesh = make_mesh(kind)
    whole = NamedSharding(mesh, P())
    ref = new_ref(jax.device_put(jnp.ones(2), whole))
    def f(x):
      ref[...] += lax.psum(x, 'x')[:2]
      return x * ref[...].sum()
    f = sharded(f, mesh, check=check)
    got = self.run_or_fail(jax.jit(f) if jit else f, self.x)
    wanted = 1. + self.x.reshape(mesh.shape['x'], -1).sum(0)[:2]
    self.assertAllClose(ref[...], wanted)
    self.assertAllClose(got, self.x * wanted.sum())

  @red(REF_REFUSED)
  def test_captured_and_passed_to_another_shard_map(self):
    mesh = make_mesh('square')
    ref = new_ref(jax.device_put(jnp.ones(4), NamedSharding(mesh, P())))
    inner = jax.shard_map(lambda ref, x: ref[...] * x, in_specs=(P(), P()),
                          out_specs=P(), axis_names={'y'})
    f = jax.shard_map(lambda x: inner(ref, x), mesh=mesh, in_specs=P('x'),
                      out_specs=P('x'), axis_names={'x'})
    self.assertAllClose(self.run_or_fail(f, self.x), self.x)
    ref[...] = 2. * jnp.ones(4)
    self.assertAllClose(f(self.x), 2. * self.x)

  @red(REF_REFUSED)
  def test_captured_ref_is_another_one_the_next_time(self):
    mesh = make_mesh('line')
    whole = NamedSharding(mesh, P())
    refs = [new_ref(jax.device_put(jnp.zeros(()), whole)) for _ in range(2)]
    current = []
    def f(x):
      current[-1][...] += lax.psum(x.sum(), 'x')
      return x
    f = sharded(f, mesh)
    for ref in refs:
      current.append(ref)
      self.run_or_fail(f, self.x)
    self.assertEqual([float(ref[...]) for ref in refs], [28., 28.])

  if jax.__version_info__ >= (0, 9, 2):  # under jit, too, it has one since
    @red(REF_REFUSED, bases='>=0.9.2')
    def test_gradient(self):
      mesh = make_mesh('line')
      def f(x):
        ref = new_ref(jnp.sin(x))
        ref[...] *= x
        return ref[...]
      got = self.run_or_fail(jax.grad(lambda x: sharded(f, mesh)(x).sum()),
                             jnp.asarray(self.x))
      self.assertAllClose(got, np.sin(self.x) + self.x * np.cos(self.x),
                          rtol=1e-4)

  @red("^AssertionError: 'outside of jax.jit calls a callback' not found in")
  def test_refuses_a_callback_before(self):
    def f(x):
      jax.debug.callback(lambda: None)
      ref = new_ref(x)
      return ref[...]
    self.assert_refused('outside of jax.jit calls a callback', f)

  @red("^AssertionError: 'outside of jax.jit captures a jax.Ref' not found in")
  def test_refuses_a_captured_ref_of_other_devices(self):
    ref = new_ref(jnp.zeros(2))
    def f(x):
      return x + ref[...].sum()
    self.assert_refused('outside of jax.jit captures a jax.Ref', f)

  def test_function_runs_once_without_refs(self):
    runs = []
    def f(x):
      runs.append(1)
      return x + 1.
    sharded(f, make_mesh('line'))(self.x)
    self.assertLen(runs, 1)
