# SPDX-License-Identifier: Apache-2.0
"""jax_explicit_reshard: what is refused, resharded and left open.

The oracle is the same program on whole arrays.
"""
import contextlib
import os
import subprocess
import sys
import warnings

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jax.sharding import reshard
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

RNG = np.random.RandomState(0)
A, B = RNG.rand(2, 8, 8).astype(np.float32)
T = RNG.rand(4, 8, 8).astype(np.float32)
S = A @ A.T + 8 * np.eye(8, dtype=np.float32)
X, Y, WHOLE = P('x', None), P(None, 'y'), P(None, None)
T_X = P('x', None, None)

# Name: the program, its arguments, their specs, the result's spec.
PROGRAMS = {
    'shard_map': (lambda a: jax.shard_map(
        lambda a: 2 * a, in_specs=X, out_specs=X)(a), (A,), (Y,), X),
    'partly_manual': (lambda a: jax.shard_map(
        lambda a: 2 * a, in_specs=X, out_specs=X, axis_names={'x'})(a),
                      (A,), (Y,), P('x', 'y')),
    'einsum': (lambda a, b: jnp.einsum('bij,bjk->bik', a, b),
               (T, T), (T_X, P()), T_X),
    'matmul': (jnp.matmul, (T, T), (T_X, P()), T_X),
    'concatenate': (lambda a, b: jnp.concatenate([a, b], 1),
                    (A, B), (X, P()), X),
    'stack': (lambda a, b: jnp.stack([a, b]), (A, B), (P(), X),
              P(None, 'x', None)),
    'where': (lambda a, b: jnp.where(a > .5, a, b), (A, B), (X, P()), X),
    'select': (lambda p, a, b: jnp.where(p, a, b), (A > .5, A, B), (P(), X, X),
               X),
    'update': (lambda a, b: lax.dynamic_update_slice(a, b, (2, 0)),
               (A, B[:4]), (X, P()), X),
    'cumsum': (lambda a: jnp.cumsum(a, 0), (A,), (X,), WHOLE),
    'cumsum_of_all': (jnp.cumsum, (A,), (X,), P(None)),
    'sort': (lambda a: jnp.sort(a, 0), (A,), (X,), WHOLE),
    'sort_two': (lambda a, b: lax.sort([a, b])[1], (A, B), (X, P()), X),
    'sort_along': (lambda a, b: lax.sort([a, b], 0)[1], (A, B), (X, X), WHOLE),
    'top_k': (lambda a: lax.top_k(a, 2)[0], (A,), (Y,), WHOLE),
    'roll': (lambda a: jnp.roll(a, 1, 0), (A,), (X,), WHOLE),
    'tile': (lambda a: jnp.tile(a, (2, 1)), (A,), (X,), WHOLE),
    'unstack': (lambda a: sum(jnp.unstack(a)), (A,), (X,), P(None)),
    'slice': (lambda a: lax.slice(a, (0, 1), (3, 8)), (A,), (X,), WHOLE),
    'dynamic_slice': (lambda a: lax.dynamic_slice_in_dim(a, 1, 3),
                      (A,), (X,), WHOLE),
    'pad': (lambda a: jnp.pad(a, ((0, 1), (0, 0))), (A,), (X,), WHOLE),
    'split': (lambda a: jnp.split(a, [3])[0], (A,), (X,), WHOLE),
    'cholesky': (jnp.linalg.cholesky, (S,), (X,), WHOLE),
    'triangular': (lambda a, b: lax.linalg.triangular_solve(
        a, b, left_side=True, lower=True), (S, A), (WHOLE, X), WHOLE),
    'constraint': (lambda a: lax.with_sharding_constraint(a, X)
                   if jax.typeof(a).sharding.spec == WHOLE
                   and not jax.sharding.get_abstract_mesh().empty else a,
                   (A,), (WHOLE,), X),
    'index': (lambda a: a[3], (A,), (X,), P(None)),
    'vmap': (jax.vmap(lambda a, b: a * b), (A, B), (X, P()), X),
}

OPEN = {
    'add': (lambda a, b: a + b, (A, B), (X, P('y', None))),
    'contraction': (lambda a, b: a @ b, (A, B), (P(None, 'x'), X)),
    'reshape': (lambda a: a.reshape(64), (A,), (Y,)),
    'take': (lambda a: a[np.array([1, 5])], (A,), (X,)),
    'not_divisible': (lambda a, b: lax.dynamic_update_slice(a, b, (2, 0)),
                      (A, B[:3]), (X, P())),
    'scan': (lambda a, b: lax.scan(lambda c, _: (c + b, None), a, None,
                                   length=2)[0], (A, B), (P(), X)),
}


def make_mesh():
  return jax.make_mesh((2, 4), ('x', 'y'), axis_types=(AxisType.Explicit,) * 2)


def placed(args, specs):
  return [reshard(jnp.asarray(a), s) for a, s in zip(args, specs)]


@contextlib.contextmanager
def option(value):
  with jax.explicit_reshard(value):
    yield


@contextlib.contextmanager
def warned():
  """The messages of the option's warnings."""
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter('always')
    said = []
    yield said
  said += [str(w.message) for w in caught
           if w.category is jax.errors.ReshardWarning
           and w.filename == __file__]


@red("^AttributeError: .*has no attribute '", api_missing=True)
class ExplicitReshardTest(jtu.JaxTestCase):

  def check(self, name, run):
    f, args, specs, spec = PROGRAMS[name]
    want = 2 * A if 'shard_map' in name or name == 'partly_manual' else f(*args)
    with jax.set_mesh(make_mesh()):
      with option('allow'):
        got = run(f)(*placed(args, specs))
      self.assertEqual(jax.typeof(got).sharding.spec, spec)
    self.assertAllClose(np.asarray(got), np.asarray(want), rtol=1e-4)

  @parameterized.product(name=list(PROGRAMS))
  def test_jit(self, name):
    self.check(name, jax.jit)

  @parameterized.product(name=['shard_map', 'einsum', 'concatenate', 'cumsum'])
  def test_eager(self, name):
    self.check(name, lambda f: f)

  @parameterized.product(name=['concatenate', 'sort'])
  def test_refused_by_default(self, name):
    f, args, specs, _ = PROGRAMS[name]
    with jax.set_mesh(make_mesh()):
      args = placed(args, specs)
      with self.assertRaises(core.ShardingTypeError):
        jax.jit(f)(*args)
      with option('allow'):
        jax.jit(f)(*args)
      # No trace is taken for the other's.
      with self.assertRaises(core.ShardingTypeError):
        jax.jit(f)(*args)

  @parameterized.product(name=list(OPEN))
  def test_open_is_refused(self, name):
    f, args, specs = OPEN[name]
    with jax.set_mesh(make_mesh()):
      args = placed(args, specs)
      def error():
        with self.assertRaises(
            (core.ShardingTypeError, ValueError, TypeError)) as e:
          jax.jit(f)(*args)
        return type(e.exception), str(e.exception)[:60]
      refused = error()
      with option('allow'):
        self.assertEqual(error(), refused)

  def test_vmap_leaves_what_is_no_array(self):
    mesh = jax.make_mesh((2,), ('x',), axis_types=(AxisType.Explicit,))
    spread = jax.device_put(A[0], jax.NamedSharding(mesh, P('x')))
    others = (lax.create_token(), jax.new_ref(jnp.zeros(8)))
    with jax.explicit_reshard('allow'):
      from jax._src.meshes import explicit_reshard  # not on stock releases
      new = explicit_reshard.mapped_alike([spread, *others], [0, 0, 0])
    for x, old in zip(new, (spread, *others)):
      self.assertIs(x, old)

  def test_vmap_writes_to_a_reference(self):
    mesh = jax.make_mesh((2,), ('x',), axis_types=(AxisType.Explicit,))
    spread = jax.device_put(A[0], jax.NamedSharding(mesh, P('x')))

    @jax.jit
    def doubled(x, b):
      ref = jax.new_ref(x * 0)

      def write(ref, a, b):
        ref[...] = a * b
      jax.vmap(write)(ref, x, b)
      return ref[...]
    with jax.explicit_reshard('allow'):
      got = doubled(spread, jnp.asarray(B[0]))
    self.assertAllClose(np.asarray(got), A[0] * B[0])

  @parameterized.product(name=['matmul', 'concatenate', 'cumsum', 'vmap'])
  def test_warning_names_the_line_to_write(self, name):
    f, args, specs, _ = PROGRAMS[name]
    with jax.set_mesh(make_mesh()), option('warn'):
      with warned() as said:
        jax.jit(lambda *args: f(*args) + 1)(*placed(args, specs))
    if name == 'matmul' and jax.__version_info__ < (0, 10, 2):
      self.assertEmpty(said)  # which upstream takes as it is
      return
    self.assertLen(said, 1)
    self.assertIn(__file__, said[0])
    line = said[0].partition('write ')[2].partition(' for it')[0]
    operand = int(said[0].partition('operand ')[2][:1]) if (
        'operand 1' in said[0]) else 1 if 'argument 1' in said[0] else 0
    with jax.set_mesh(make_mesh()):
      args = placed(args, specs)
      args[operand] = eval(line, {'jax': jax, 'x': args[operand]})
      jax.jit(f)(*args)  # as it is

  def test_allow_says_nothing(self):
    f, args, specs, _ = PROGRAMS['cumsum']
    with jax.set_mesh(make_mesh()), option('allow'), warned() as said:
      jax.jit(lambda a: f(a) * 3)(*placed(args, specs))
    self.assertEmpty(said)

  @parameterized.product(jit=[True, False])
  def test_gradient(self, jit):
    f = lambda a, b: jnp.sum(jnp.sin(jnp.einsum('bij,bjk->bik', a, b)))
    want = jax.grad(f, (0, 1))(T, T)
    with jax.set_mesh(make_mesh()), option('allow'):
      a, b = placed((T, T), (T_X, P()))
      g = jax.grad(f, (0, 1))
      got = (jax.jit(g) if jit else g)(a, b)
      self.assertEqual([jax.typeof(x).sharding.spec for x in got],
                       [T_X, P(None, None, None)])
    self.assertAllClose(jax.device_get(got), jax.device_get(want), rtol=1e-4)

  @parameterized.product(
      jit=[True, False],
      name=['concatenate', 'slice', 'update', 'tile', 'pad', 'where'])
  def test_gradient_of_what_is_its_own_tangent(self, name, jit):
    # Reverse mode binds it once more, for tangents that aren't known.
    f, args, specs, _ = PROGRAMS[name]
    floats = [n for n, a in enumerate(args) if a.dtype == np.float32]
    g = jax.grad(lambda *args: jnp.sum(f(*args) ** 2), tuple(floats))
    want = g(*args)
    with jax.set_mesh(make_mesh()), option('allow'):
      got = (jax.jit(g) if jit else g)(*placed(args, specs))
    self.assertAllClose(jax.device_get(got), jax.device_get(want), rtol=1e-4)

  @parameterized.product(
      jit=[True, False], forward=[True, False],
      name=['sort', 'sort_along', 'top_k', 'cumsum'])
  def test_derivative_that_gathers(self, name, jit, forward):
    # The rule for derivatives gathers from the tangents, spread as they were.
    f, args, specs, _ = PROGRAMS[name]
    n = len(args) - 1
    if forward:
      g = lambda *args: jax.jvp(f, args, args)[1]
    else:
      g = jax.grad(lambda *args: jnp.sum(f(*args) ** 2), n)
    want = g(*args)
    with jax.set_mesh(make_mesh()), option('allow'):
      got = (jax.jit(g) if jit else g)(*placed(args, specs))
      if not forward:
        self.assertEqual(jax.typeof(got).sharding.spec, specs[n])
    self.assertAllClose(jax.device_get(got), jax.device_get(want), rtol=1e-4)

  @parameterized.product(jit=[True, False], transform=['value', 'grad'])
  def test_arguments_that_are_over_no_mesh(self, jit, transform):
    # jax.make_mesh gives Explicit axes from 0.9 on; data comes from NumPy.
    f = jax.shard_map(
        lambda a, b: lax.pmean(jnp.mean(jnp.sin(a @ b)), ('x', 'y')),
        mesh=make_mesh(), in_specs=(P('x', None), P(None, 'y')), out_specs=P())
    plain = lambda a, b: jnp.mean(jnp.sin(a @ b))
    if transform == 'grad':
      f, plain = (jax.value_and_grad(g, (0, 1)) for g in (f, plain))
    run = jax.jit(f) if jit else f
    with self.assertRaisesRegex(ValueError, 'in_specs'):
      run(A, B)
    with option('allow'):
      self.assertAllClose(jax.device_get(run(A, B)),
                          jax.device_get(plain(A, B)), rtol=1e-5)

  def test_warning_about_an_argument_over_no_mesh(self):
    mesh = make_mesh()
    f = jax.shard_map(lambda a: a * 2, mesh=mesh, in_specs=X, out_specs=X)
    with option('warn'), warned() as said:
      f(A)
    self.assertLen(said, 1)
    line = said[0].partition('write ')[2].partition(' for it')[0]
    placed_so = eval(line, {'jax': jax, 'x': A, 'mesh': mesh})
    self.assertAllClose(np.asarray(f(placed_so)), A * 2)

  def test_argument_over_another_mesh_stays_refused(self):
    explicit = AxisType.Explicit
    here = jax.make_mesh((8,), ('x',), axis_types=(explicit,))
    others = [jax.make_mesh((4, 2), ('a', 'b'), axis_types=(explicit,) * 2),
              jax.make_mesh((8,), ('x',), axis_types=(AxisType.Auto,))]
    f = jax.shard_map(lambda x: 2. * x, mesh=here, in_specs=P('x'),
                      out_specs=P('x'))
    for mesh in others:
      x = jax.device_put(A, jax.sharding.NamedSharding(mesh, P()))
      with option('allow'), self.assertRaisesRegex(
          ValueError, 'does not match the specs of the input'):
        f(x)

  def test_under_transformations(self):
    f = lambda a, b: jnp.concatenate([jnp.cumsum(a, 0), b], 1)
    with jax.set_mesh(make_mesh()), option('allow'):
      a, b = placed((A, B), (X, P()))
      _, tangent = jax.jvp(f, (a, b), (a, b))
      remat = jax.grad(jax.checkpoint(lambda a: jnp.sum(f(a, b) ** 2)))(a)
    self.assertAllClose(np.asarray(tangent), np.asarray(f(A, B)), rtol=1e-5)
    want = jax.grad(lambda a: jnp.sum(f(a, B) ** 2))(A)
    self.assertAllClose(np.asarray(remat), np.asarray(want), rtol=1e-5)

  def test_config_update(self):
    self.assertEqual(jax.config.jax_explicit_reshard, 'refuse')
    jax.config.update('jax_explicit_reshard', 'allow')
    try:
      self.check('sort', jax.jit)
    finally:
      jax.config.update('jax_explicit_reshard', 'refuse')
    with self.assertRaises(ValueError):
      jax.config.update('jax_explicit_reshard', 'yes')

  @red(r"^CalledProcessError: Command '\['.*/bin/python', '-c', 'import jax; "
       r'print\(jax\.config\.jax_explicit_reshard', api_missing=True)
  def test_environment_variable(self):
    env = dict(os.environ, JAX_EXPLICIT_RESHARD='warn')
    said = subprocess.run(
        [sys.executable, '-c',
         'import jax; print(jax.config.jax_explicit_reshard)'],
        env=env, capture_output=True, text=True, check=True).stdout
    self.assertEqual(said.strip(), 'warn')

  def test_what_is_accepted_stays(self):
    f = lambda a, b: jnp.cumsum(jnp.concatenate([a, b]) @ a, 1)
    with jax.set_mesh(make_mesh()):
      args = placed((A, B), (X, X))
      lowered = []
      for value in ('refuse', 'warn', 'allow'):
        with option(value):
          lowered.append(jax.jit(f).lower(*args).as_text())
    self.assertLen(set(lowered), 1)
