# SPDX-License-Identifier: Apache-2.0
"""The shardings of results in eval_shape and out_info (jax#19656)."""

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
from jax._src.lax import lax as lax_internal
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.sharding import SingleDeviceSharding
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, partly_manual, shard_map

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NO_SHARDING = '^AssertionError: None != NamedSharding'
WRONG_AXES_OF_EACH = ('^AssertionError: Lists differ: .None, None. != '
                      '.NamedSharding')
OTHER_SHARDING_MESH = {
    '<0.5.3':
        r"^AssertionError: None != NamedSharding\(mesh=Mesh\('x': 4, 'y': "
        r'2\), ',
    '>=0.5.3':
        r"^AssertionError: None != NamedSharding\(mesh=Mesh\('x': 4, 'y': 2, "
        r'ax\[',
}

X = np.arange(32, dtype=np.float32).reshape(8, 4)


def layout(*names, shape=(4, 2)):
  devices = np.array(jax.devices()[:np.prod(shape)]).reshape(shape)
  return NamedSharding(Mesh(devices, ('x', 'y')[:len(shape)]), P(*names))


def constrained(sharding):
  return lambda x: lax.with_sharding_constraint(x * 2, sharding)


def with_custom_jvp(f):
  g = jax.custom_jvp(f)
  g.defjvp(lambda primals, tangents: (g(*primals), tangents[0]))
  return g


def with_custom_vjp(f):
  g = jax.custom_vjp(f)
  g.defvjp(lambda x: (g(x), None), lambda _, c: (c,))
  return g


def with_optimized_remat(f):
  g = jax.custom_vjp(f)
  g.defvjp(lambda x: (f(x), None), lambda _, c: (c,), optimize_remat=True)
  # Differentiated within a checkpoint, it is a call of a closed jaxpr.
  return lambda x: jax.vjp(jax.checkpoint(g), x)[0]


def in_two_calls(f):
  inner = jax.jit(lambda x, y: (y, x + 1))
  return lambda x: inner(x, jax.jit(f)(x))[0]


CALLS = {
    '_jit': jax.jit, '_checkpoint': jax.checkpoint,
    '_custom_jvp': with_custom_jvp, '_custom_vjp': with_custom_vjp,
    '_optimized_remat': with_optimized_remat, '_two_calls': in_two_calls,
}


# The last operation of each is gone before anything is laid out.
UNDONE = {
    'copy': jnp.copy,
    'convert_element_type': lambda x: lax.convert_element_type(
        lax_internal._convert_element_type(x, weak_type=True), np.float32),
    'reshape': lambda x: lax.reshape(lax.reshape(x, (4, 8)), x.shape),
    'squeeze': lambda x: lax.squeeze(lax.reshape(x, (1, *x.shape)), (0,)),
    'transpose': lambda x: x.T.T,
    'broadcast_in_dim': lambda x: lax.expand_dims(
        lax.squeeze(x, (1,)), (1,)) if x.ndim == 3 else x,
}


class ResultShardingsTest(jtu.JaxTestCase):

  def assertSaid(self, f, expected):
    """Asserts what each stage says, and that it is so."""
    jitted = jax.jit(f)
    said = (jax.eval_shape(f, X), jitted.eval_shape(X),
            jitted.trace(X).out_info, jitted.lower(X).out_info)
    for info in said:
      self.assertEqual((info.shape, info.dtype), ((8, 4), np.float32))
      self.assertEqual(info.sharding, expected)
    if expected is not None:
      out = jitted(X)
      self.assertTrue(expected.is_equivalent_to(out.sharding, 2), out.sharding)

  @red(OTHER_SHARDING_MESH)
  def test_constraint(self):
    for sharding in (layout('x'), layout('y', 'x'), layout(),
                     layout('x', shape=(8,))):
      self.assertSaid(constrained(sharding), sharding)

  @red(OTHER_SHARDING_MESH)
  def test_constraint_of_a_product_with_an_array(self):
    # Arrays are literals, where JAX has that option: no look at their truth.
    for option, value in (('jax_use_simplified_jaxpr_constants', True),
                          ('jax_use_shardy_partitioner', False)):
      if hasattr(jax.config, option):
        self.addCleanup(jax.config.update, option,
                        getattr(jax.config, option))
        jax.config.update(option, value)
    sharding = layout('x')
    self.assertSaid(
        lambda x: lax.with_sharding_constraint(x * X, sharding), sharding)

  @parameterized.named_parameters(*UNDONE.items())
  def test_constraint_of_what_is_undone(self, f):
    # GSPMD, which merges the constraint with the argument's layout then.
    option = 'jax_use_shardy_partitioner'
    if hasattr(jax.config, option):
      self.addCleanup(jax.config.update, option, getattr(jax.config, option))
      jax.config.update(option, False)
    jitted = jax.jit(lambda x: lax.with_sharding_constraint(f(x), layout()))
    for shape in ((8, 1, 4), (8, 4)):
      x = jax.device_put(np.ones(shape, np.float32), layout('x'))
      said, made = jax.eval_shape(jitted, x).sharding, jitted(x).sharding
      self.assertTrue(said is None or said.is_equivalent_to(made, len(shape)),
                      (said, made))

  @red(OTHER_SHARDING_MESH)
  @parameterized.named_parameters(*CALLS.items())
  def test_within_calls(self, call):
    self.assertSaid(call(constrained(layout('x', 'y'))), layout('x', 'y'))

  @red(OTHER_SHARDING_MESH)
  def test_within_calls_out_shardings(self):
    inner = jax.jit(lambda x: (x + 1, x * 2), out_shardings=(None, layout('y')))
    self.assertSaid(lambda x: inner(x)[1], layout('y'))

  @red(OTHER_SHARDING_MESH)
  def test_within_calls_in_shardings(self):
    # A call that hands its argument on has moved it. (Before 0.6 what it hands
    # on isn't its result.)
    inner = jax.jit(lambda x: x, in_shardings=layout('y', 'x'))
    moved = jax.__version_info__ >= (0, 6)
    self.assertSaid(lambda x: inner(constrained(layout('x', 'y'))(x)),
                    layout('y', 'x') if moved else layout('x', 'y'))

  @red(NO_SHARDING, bases='>=0.7.1')
  def test_set_mesh(self):
    if not hasattr(jax, 'set_mesh'):
      self.skipTest('this release has no jax.set_mesh')
    with jax.set_mesh(layout().mesh):
      self.assertSaid(constrained(P(None, 'y')), layout(None, 'y'))

  @red(OTHER_SHARDING_MESH, cases={'shape': (4, 2)})
  @red(NO_SHARDING)
  @parameterized.named_parameters(
      ('_one_axis', (8,), P('x'), P('x')),
      ('_replicated', (4, 2), P(), P()),
      ('_first_of_two', (4, 2), P('x'), P('x')),
      ('_second_of_two', (4, 2), P(None, 'y'), P(None, 'y')),
      ('_two_axes', (4, 2), P('y', 'x'), P('y', 'x')),
      ('_one_dimension', (4, 2), P(('x', 'y')), P(('x', 'y'))),
      ('_other_order', (4, 2), P(('y', 'x')), P(('y', 'x'))),
      ('_trailing_none', (4, 2), P('x', None), P('x')),
      ('_in_a_tuple', (4, 2), P(('x',)), P('x')),
      ('_axis_of_size_1', (8, 1), P('x', 'y'), P('x')),
      ('_axis_of_size_1_alone', (8, 1), P(None, 'y'), P()),
      ('_axis_of_size_1_in_a_tuple', (1, 8), P(('x', 'y')), P('y')),
      ('_one_device', (1, 1), P('x'), P()))
  def test_shard_map(self, shape, spec, expected):
    mesh = Mesh(np.array(jax.devices()[:np.prod(shape)]).reshape(shape),
                ('x', 'y')[:len(shape)])
    expected = NamedSharding(mesh, expected)
    f = shard_map(lambda x: x * 2, mesh=mesh, in_specs=(spec,), out_specs=spec)
    calls = (f, jax.jit(f), lambda x: (f(x), f(x).sum())[0],
             jax.checkpoint(f), jax.grad(lambda x: f(x).sum()))
    for g in calls:
      self.assertSaid(g, expected)
      self.assertEqual(jax.jit(g)(X).sharding, expected)
      self.assertEqual(jax.jit(g).lower(X).compile()(X).sharding, expected)

  @red(OTHER_SHARDING_MESH)
  def test_shard_map_mapped(self):
    f = shard_map(lambda x: x * 2, mesh=layout().mesh, in_specs=(P('x', 'y'),),
                  out_specs=P('x', 'y'))
    said = jax.eval_shape(jax.vmap(f), X[None]).sharding
    self.assertEqual(said, layout(None, 'x', 'y'))
    self.assertEqual(jax.jit(jax.vmap(f))(X[None]).sharding, said)

  @red(WRONG_AXES_OF_EACH)
  def test_shard_map_of_several_results(self):
    f = shard_map(lambda x: (x, x.sum()[None]), mesh=layout().mesh,
                  in_specs=(P('x'),), out_specs=(P('x'), P('x')))
    said = jax.eval_shape(f, X)
    self.assertEqual([s.sharding for s in said], [layout('x'), layout('x')])
    self.assertEqual([s.shape for s in said], [(8, 4), (4,)])
    found = jax.jit(f)(X)
    self.assertEqual([y.sharding for y in found], [layout('x'), layout('x')])

  def test_shard_map_not_said(self):
    f = shard_map(lambda x: x * 2, mesh=layout().mesh, in_specs=(P('x'),),
                  out_specs=P('x'))
    after = jax.eval_shape(lambda x: f(x) + 1, X)
    self.assertIsNone(after.sharding)
    partly = shard_map(lambda x: x * 2, mesh=layout().mesh, in_specs=(P('x'),),
                       out_specs=P('x'), **partly_manual('y', of='xy'))
    self.assertIsNone(jax.eval_shape(partly, X).sharding)

  @red('^AssertionError: None is not an instance of <class')
  def test_restored_by_its_layout(self):
    # flax#5110: arrays are made anew with the shardings of an abstract state.
    def init(x):
      return {'w': constrained(layout('x'))(x), 'step': x[0, 0]}
    abstract = jax.eval_shape(init, X)
    self.assertIsNone(abstract['step'].sharding)
    self.assertIsInstance(abstract['w'].sharding, NamedSharding)
    restored = jax.device_put(2 * X, abstract['w'].sharding)
    self.assertEqual(restored.sharding, jax.jit(init)(X)['w'].sharding)

  def test_guard_abstract_mesh(self):
    # It has no devices, and so no memories.
    mesh = layout().mesh.abstract_mesh
    out = jax.eval_shape(constrained(NamedSharding(mesh, P('x'))), X)
    self.assertEqual((out.shape, out.dtype), (X.shape, X.dtype))

  def test_not_said(self):
    some = layout('x')
    for f in (lambda x: x, lambda x: jax.jit(lambda y: (y, y))(x)[0],
              lambda x: constrained(some)(x) + 1,
              lambda x: jax.device_put(x, some),
              jax.jit(lambda x: x @ x.T @ x),
              lambda x: lax.fori_loop(0, 2, lambda _, y: constrained(some)(y),
                                      x)):
      self.assertIsNone(jax.eval_shape(f, X).sharding)
      self.assertIsNone(jax.jit(f).lower(X).out_info.sharding)
    batched = jax.eval_shape(jax.vmap(constrained(layout())), X[None])
    self.assertIsNone(batched.sharding)
    # Without elements there is nothing to split.
    empty = jax.device_put(X[:, :0], some)
    for f in (lambda x: x, lambda x: constrained(some)(x + 1)):
      self.assertIsNone(jax.eval_shape(f, empty).sharding)
    if any(m.kind == 'pinned_host'
           for m in jax.devices()[0].addressable_memories()):
      # CPUs leave it in the usual memory.
      host = some.with_memory_kind('pinned_host')
      for f in (constrained(host),
                jax.jit(lambda x: x + 1, out_shardings=host)):
        self.assertIsNone(jax.eval_shape(lambda x, f=f: f(x), X).sharding)
    placed = jax.device_put(X, some)
    self.assertIsNone(jax.eval_shape(lambda x: x * 2, placed).sharding)
    # What nobody placed goes with the others, or stays.
    self.assertIsNone(jax.eval_shape(lambda x: x, jax.numpy.array(X)).sharding)
    jax.jit(lambda x: self.assertIsNone(
        jax.eval_shape(lambda y: y, x).sharding))(placed)

  @red(NO_SHARDING)
  @parameterized.product(
      place=[lambda: layout('x'), lambda: layout('x', None), layout,
             lambda: layout(None, 'y'), lambda: layout('x', 'y'),
             lambda: layout(('x', 'y')), lambda: layout('x', shape=(8,)),
             lambda: layout('x', 'y', shape=(8, 1)),
             lambda: layout('x', shape=(1,))],
      how=['alone', 'with_another', 'jit', 'checkpoint', 'loop'])
  def test_argument(self, place, how):
    self.assertHandedThrough(how, place())

  @red('^AssertionError: None != SingleDeviceSharding')
  def test_argument_on_one_device(self):
    for device in jax.devices()[:2]:
      self.assertHandedThrough('alone', SingleDeviceSharding(device))

  def assertHandedThrough(self, how, placed):
    f = {
        'alone': lambda x: x,
        'with_another': lambda x: (x, x @ x.T)[0],
        'jit': lambda x: jax.jit(lambda y: (y + 1, y))(x)[1],
        'checkpoint': lambda x: jax.checkpoint(lambda y: y)(x),
        'loop': lambda x: (lax.fori_loop(0, 3, lambda _, y: y + 1, x), x)[1],
    }[how]
    array = jax.device_put(X, placed)
    abstract = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=placed)
    jitted = jax.jit(f)
    for x in array, abstract:
      for said in (jax.eval_shape(f, x), jitted.eval_shape(x),
                   jitted.trace(x).out_info, jitted.lower(x).out_info):
        self.assertEqual(said.sharding, placed)
    self.assertEqual(jitted(array).sharding, placed)
    self.assertEqual(jitted.lower(array).compile()(array).sharding, placed)

  @red(WRONG_AXES_OF_EACH)
  @parameterized.parameters(
      (('x', None), ('x',), (4, 2)), (('x', 'y'), ('x', 'y'), (4, 2)),
      (('x', 'y'), ('x',), (8, 1)), (('x',), (), (1,)))
  def test_argument_of_in_shardings(self, spec, expected, shape):
    placed = layout(*spec, shape=shape)
    expected = layout(*expected, shape=shape)
    jitted = jax.jit(lambda x, n: (x, n + 1), in_shardings=(placed, None))
    for said in (jitted.eval_shape(X, 1), jitted.trace(X, 1).out_info,
                 jitted.lower(X, 1).out_info):
      self.assertEqual([s.sharding for s in said], [expected, None])
    self.assertEqual(jitted(X, 1)[0].sharding, expected)
    self.assertEqual(jitted.lower(X, 1).compile()(X, 1)[0].sharding, expected)

  @red('^AssertionError: Lists differ: .None, None, None. != .None, '
       'NamedSharding')
  def test_argument_with_a_captured_one(self):
    x, other = jax.device_put(X, layout('x')), jax.device_put(X, layout('y'))
    said = jax.eval_shape(lambda y: (other * 2, y, other + y), x)
    self.assertEqual([s.sharding for s in said], [None, layout('x'), None])

  @red(NO_SHARDING)
  def test_state_that_is_handed_on(self):
    abstract = jax.eval_shape(
        lambda x: {'w': constrained(layout('x'))(x), 'n': x.sum()}, X)
    step = lambda state: {'w': state['w'], 'n': state['n'] + 1}
    said = jax.eval_shape(step, abstract)
    self.assertEqual(said['w'].sharding, layout('x'))
    self.assertIsNone(said['n'].sharding)

  @parameterized.product(
      layouts=[(layout('x'), layout()), (layout('x', 'y'), layout('x')),
               (layout('x'), layout(None, 'y'))],
      how=['twice', 'added', 'jit', 'argument', 'shard_map'])
  def test_guard_merged_layouts(self, layouts, how):
    # GSPMD merges a layout with its operand's, along axes that it leaves out.
    before, last = layouts
    constrain = lax.with_sharding_constraint
    f, x = {
        'twice': lambda x: constrain(constrain(x * 2, before), last),
        'added': lambda x: constrain(constrain(x * 2, before) + 0, last),
        'jit': jax.jit(lambda x: constrain(x * 2, before), out_shardings=last),
        'argument': lambda x: constrain(x, last),
        'shard_map': lambda x: constrain(shard_map(
            lambda x: x * 2, mesh=before.mesh, in_specs=before.spec,
            out_specs=before.spec)(x), last),
    }[how], jax.device_put(X, before) if how == 'argument' else X
    said = jax.eval_shape(f, x).sharding
    if said is not None:
      self.assertEqual(said, jax.jit(f)(x).sharding)

  @red(NO_SHARDING, bases='<0.7')
  def test_out_shardings_of_the_function(self):
    outer = jax.jit(constrained(layout('x')), out_shardings=layout('y'))
    self.assertEqual(outer.lower(X).out_info.sharding, layout('y'))
    self.assertEqual(outer.eval_shape(X).sharding, layout('y'))
    self.assertEqual(outer.trace(X).out_info.sharding, layout('y'))

  def test_other_results_stay(self):
    def f(x):
      return constrained(layout('x'))(x), (jax.random.key(0), 1, x[0])
    said = jax.eval_shape(f, X)
    self.assertEqual(jax.tree.map(lambda s: s.shape, said),
                     ((8, 4), ((), (), (4,))))
    self.assertTrue(said[1][1].weak_type)
    self.assertTrue(jax.dtypes.issubdtype(said[1][0].dtype,
                                          jax.dtypes.prng_key))
