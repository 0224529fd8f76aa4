# SPDX-License-Identifier: Apache-2.0
"""Shardings over the mesh of outside, given in partly manual regions."""
import jax
from jax import lax
from jax._src import config
from jax._src import pjit
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import AxisType, eight_devices, shard_map, typed_mesh
from varying.testing import common

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NOT_MANUAL_TYPE = ('^ValueError: Axes mentioned in `manual_axis_type` field '
                   'of ShapedArray should be of type `Manual`')
NOT_MANUAL = ('^ValueError: Axes mentioned in `vma` field of ShapedArray '
              'should be of type `Manual`')
OTHER_CONTEXT_MESH = ('^ValueError: Context mesh .* should match the mesh of '
                      'sharding')
OTHER_MANUAL_AXES = '^AssertionError: ".*" does not match "Axes mentioned in'

NEW = hasattr(jax, 'shard_map')
X = np.arange(32., dtype=np.float32).reshape(4, 8) / 10
use_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh
reshard = pjit.reshard  # its public place changed
EXPLICIT, AUTO = AxisType.Explicit, AxisType.Auto


def mesh_of(*types):
  return typed_mesh((2,) * len(types), ('x', 'y', 'z')[:len(types)], types)


def mapped(f, mesh, manual=('x',), check=True):
  specs = dict(in_specs=P('x'), out_specs=P('x'))
  if NEW:
    return shard_map(f, mesh=mesh, axis_names=set(manual), check_vma=check,
                     **specs)
  return shard_map(f, mesh=mesh, auto=frozenset(mesh.axis_names) - set(manual),
                   check_rep=False, **specs)


def wave(x):
  return jnp.sin(x) * jnp.mean(x)


class ConstraintsTest(jtu.JaxTestCase):

  def check(self, place, mesh, jit, manual=('x',), context=False):
    """Values and gradients of a function that places a value inside."""
    def rows(x):
      return wave(place(x * 2))
    f = mapped(rows, mesh, manual)
    parts = np.split(X, 2)
    want = np.concatenate([wave(p * 2) for p in parts])
    want_grad = jax.grad(
        lambda x: sum(jnp.sum(wave(p * 2)) for p in jnp.split(x, 2)))(X)
    maybe_jit = jax.jit if jit else lambda f: f
    args = [jax.device_put(X, NamedSharding(mesh, P('x')))]
    def run():
      return (maybe_jit(f)(*args),
              maybe_jit(jax.grad(lambda x: jnp.sum(f(x))))(*args))
    if context:
      with use_mesh(mesh):
        out, grad = run()
    else:
      out, grad = run()
    self.assertAllClose(np.asarray(out), np.asarray(want), rtol=1e-4,
                        atol=1e-4)
    self.assertAllClose(np.asarray(grad), np.asarray(want_grad), rtol=1e-4,
                        atol=1e-4)

  @red(NOT_MANUAL_TYPE, bases='>=0.10')
  @red(NOT_MANUAL, bases='>=0.8,<0.10')
  @jtu.sample_product(spec=[P(), P(None, 'y'), P('y', P.UNCONSTRAINED)])
  def test_constraint_by_sharding(self, spec):
    mesh = mesh_of(AUTO, AUTO)
    s = NamedSharding(mesh, spec)
    self.check(lambda x: lax.with_sharding_constraint(x, s), mesh, True)

  @red('^NotImplementedError: Unhandled OpSharding type', bases='<0.8')
  @jtu.sample_product(spec=[P(), P(None, 'y')])
  def test_constraint_by_spec(self, spec):
    mesh = mesh_of(AUTO, AUTO)
    self.check(lambda x: lax.with_sharding_constraint(x, spec), mesh, True,
               context=True)

  @red(NOT_MANUAL_TYPE, bases='>=0.10')
  @red(NOT_MANUAL, bases='>=0.8,<0.10')
  @red(NOT_MANUAL, bases='==0.7.2')
  @red(OTHER_CONTEXT_MESH, bases='>=0.7,<0.7.2')
  def test_eager(self):
    if not common.RUNS_PARTLY_MANUAL:
      self.skipTest('a partly manual shard_map is refused there without jit')
    mesh = mesh_of(AUTO, AUTO)
    s = NamedSharding(mesh, P(None, 'y'))
    self.check(lambda x: lax.with_sharding_constraint(x, s), mesh, False)
    mesh = mesh_of(EXPLICIT, EXPLICIT)
    t = NamedSharding(mesh, P(None, 'y'))
    self.check(lambda x: reshard(x, t), mesh, False, context=True)

  @red(NOT_MANUAL_TYPE, bases='>=0.10')
  @red(NOT_MANUAL, bases='>=0.8,<0.10')
  @red(NOT_MANUAL, bases='==0.7.2')
  @red(OTHER_CONTEXT_MESH, bases='<0.7.2')
  @jtu.sample_product(spec=[P(), P(None, 'y')])
  def test_reshard_by_sharding(self, spec):
    mesh = mesh_of(EXPLICIT, EXPLICIT)
    s = NamedSharding(mesh, spec)
    self.check(lambda x: reshard(x, s), mesh, True, context=True)

  @red(NOT_MANUAL_TYPE, bases='>=0.10')
  @red(NOT_MANUAL, bases='>=0.8,<0.10')
  @red("^ValueError: Length of sharding.spec must be equal to aval's ndim",
       bases='<0.5.3')
  def test_automatic_axis_beside_explicit_ones(self):
    mesh = mesh_of(EXPLICIT, EXPLICIT, AUTO)
    s = NamedSharding(mesh, P(None, 'z'))
    self.check(lambda x: lax.with_sharding_constraint(x, s), mesh, True,
               context=True)

  @red(NOT_MANUAL_TYPE, bases='>=0.10')
  @red(NOT_MANUAL, bases='>=0.8,<0.10')
  def test_all_axes_manual(self):
    mesh = mesh_of(AUTO)
    s = NamedSharding(mesh, P())
    self.check(lambda x: lax.with_sharding_constraint(x, s), mesh, True)

  @red('^TypeError: scan body function carry input and carry output must '
       'have equal types', bases='>=0.6.1')
  def test_loop(self):
    # What the body constrains doesn't vary yet when it is traced.
    mesh = mesh_of(AUTO, AUTO)
    s = NamedSharding(mesh, P(None, 'y'))
    def place(x):
      def body(c, _):
        return lax.with_sharding_constraint(c, s) + x / 2, None
      return lax.scan(body, jnp.zeros(x.shape), None, length=2)[0]
    self.check(place, mesh, True)

  @red(NOT_MANUAL_TYPE, bases='>=0.10')
  @red(NOT_MANUAL, bases='>=0.8,<0.10')
  def test_nested_regions(self):
    if jax.__version_info__ < (0, 7, 1):
      self.skipTest('the partitioner refuses it there, or ends the process')
    mesh = mesh_of(AUTO, AUTO, AUTO)
    s = NamedSharding(mesh, P(None, 'z'))
    def place(x):
      inner = jax.shard_map(lambda x: lax.with_sharding_constraint(x, s),
                            in_specs=P(None, 'y'), out_specs=P(None, 'y'),
                            axis_names={'y'})
      return inner(x)
    self.check(place, mesh, True)

  def check_refused(self, place, name, axis_type):
    mesh = mesh_of(axis_type, axis_type)
    s = NamedSharding(mesh, P('x'))
    x = jax.device_put(X, s)
    error = rf"{name} inside of shard_map: expected .*'y'.*; got .*'x'"
    with self.assertRaisesRegex(ValueError, error):
      jax.jit(mapped(lambda x: place(x, s), mesh)).trace(x)

  @red(OTHER_MANUAL_AXES, bases='>=0.8')
  @red('^AssertionError: ValueError not raised', bases='<0.8')
  def test_manual_axis_of_a_constraint_is_refused(self):
    self.check_refused(lax.with_sharding_constraint,
                       'jax.lax.with_sharding_constraint', AUTO)

  @red(OTHER_MANUAL_AXES, bases='>=0.8')
  @red(OTHER_MANUAL_AXES, bases='==0.7.2')
  @red('^AssertionError: ".*" does not match "Context mesh', bases='<0.7.2')
  def test_manual_axis_of_reshard_is_refused(self):
    self.check_refused(reshard, 'reshard', EXPLICIT)

  def test_without_the_check_it_stays(self):
    mesh = mesh_of(AUTO, AUTO)
    s = NamedSharding(mesh, P(None, 'y'))
    f = mapped(lambda x: lax.with_sharding_constraint(x, s), mesh, check=False)
    self.assertAllClose(np.asarray(jax.jit(f)(X)), X)
