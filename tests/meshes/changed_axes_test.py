# SPDX-License-Identifier: Apache-2.0
"""auto_axes and explicit_axes in a partly manual shard_map."""
import inspect

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import AxisType, UNCHECKED
from testing.sharding import partly_manual, shard_map, typed_mesh
from varying.testing import common

try:
  from jax.sharding import auto_axes, explicit_axes
except ImportError:  # up to 0.6.2
  from jax.experimental.shard import auto_axes, explicit_axes

config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_CONTEXT_MESH = ('^ValueError: For primitive .*, context mesh '
                      r'AbstractMesh\(')
CLOSED_OVER_EXPLICIT = ('^NotImplementedError: Closing over inputs to '
                        'shard_map where the input is sharded on')
ABSTRACT_SHARDING = r'^AssertionError: \(NamedSharding\(mesh=AbstractMesh\('
FROM_MANUAL = ('^NotImplementedError: Going from `Manual` AxisType to `Auto` '
               'or `Explicit`')

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
set_mesh = getattr(jax, 'set_mesh', None) or jax.sharding.use_mesh
X = np.linspace(-1., 1., 32, dtype=np.float32).reshape(4, 8)
W = np.linspace(.5, 1.5, 8, dtype=np.float32)[None]
INDEX = np.array([3, 1, 0, 5, 2, 2, 4, 1])


def _layouts(function):
  """The keyword by which a function takes layouts, plural up to 0.6.0."""
  names = inspect.signature(function).parameters
  return next(n for n in names if n.endswith(('_sharding', '_shardings')))


def auto(f, out=P(None, 'y'), **kwargs):
  return auto_axes(f, **{_layouts(auto_axes): out}, **kwargs)


def explicit(f, spec=P(None, 'y'), **kwargs):
  return explicit_axes(f, **{_layouts(explicit_axes): spec}, **kwargs)


# Bodies: of one device, and the same with axes changed within.


def layer(x):  # its backward pass keeps an array and a scalar
  return jnp.sin(x) * jnp.cos(jnp.sum(x * x))


def product(x):
  return jnp.tanh(x @ (W.T * W)) * W


def twice(x):
  return lax.scan(lambda c, _: (layer(c), None), x, None, length=2)[0]


def twice_auto(x):
  return lax.scan(lambda c, _: (auto(layer)(c), None), x, None, length=2)[0]


def scaled(x, within=lambda c, scale: layer(c) * scale):
  scale = jnp.cos(x)  # a constant of the loop
  return lax.scan(lambda c, _: (within(c, scale), None), x, None, length=2)[0]


def scaled_auto(x):
  return scaled(x, auto(lambda c, scale: layer(c) * scale))


def branch(x):
  return lax.cond(jnp.sum(x) > 0., layer, jnp.cos, x)


def branch_auto(x):
  return lax.cond(jnp.sum(x) > 0., auto(layer), jnp.cos, x)


def rows(x):
  return jax.vmap(lambda r: jnp.sin(r) * jnp.cos(r.sum()))(x)


def rows_auto(x):
  return jax.vmap(auto(lambda r: jnp.sin(r) * jnp.cos(r.sum()), P('y')))(x)


def several(x):
  a, b = layer(x), jnp.cos(jnp.sum(x))
  return a * b


def several_auto(x):
  a, b = auto(lambda x: (layer(x), jnp.cos(jnp.sum(x))), (P(None, 'y'), P()))(x)
  return a * b


def own_jvp(x):
  f = jax.custom_jvp(layer)
  f.defjvp(lambda primals, tangents: jax.jvp(layer, primals, tangents))
  return f(x)


def own_vjp(x):
  f = jax.custom_vjp(layer)
  f.defvjp(lambda x: (layer(x), x), lambda x, ct: jax.vjp(layer, x)[1](ct))
  return f(x)


def zero_jvp(x):  # beside another whose tangent is zero
  f = jax.custom_jvp(lambda x: (layer(x), jnp.cos(x)))
  f.defjvp(lambda primals, tangents: (
      f(*primals), (jax.jvp(layer, primals, tangents)[1],
                    jnp.zeros_like(primals[0]))))
  return f(x)[0]


def zero_vjp(x):  # of two operands, of which one has no gradient
  f = jax.custom_vjp(lambda x, y: layer(x) + 0 * y)
  f.defvjp(lambda x, y: (f(x, y), x),
           lambda x, ct: (*jax.vjp(layer, x)[1](ct), None))
  return f(x, jnp.cos(x))


def taken(x):
  return layer(x)[:, INDEX]


def taken_auto(x):
  return layer(x).at[:, INDEX].get(out_sharding=P(None, 'y'))


BODIES = dict(
    layer=(layer, auto(layer)), product=(product, auto(product)),
    scan_within=(twice, auto(twice)), in_scan=(twice, twice_auto),
    cond_within=(branch, auto(branch)), in_cond=(branch, branch_auto),
    in_vmap=(rows, rows_auto), several=(several, several_auto),
    in_jit=(layer, jax.jit(auto(layer))),
    in_checkpoint=(layer, jax.checkpoint(auto(layer))),
    checkpoint_within=(layer, auto(jax.checkpoint(layer))),
    own_jvp=(layer, auto(own_jvp)), own_vjp=(layer, auto(own_vjp)),
    zero_jvp=(layer, auto(zero_jvp)), zero_vjp=(layer, auto(zero_vjp)))


def loss(f):
  return lambda x: jnp.sum(f(x) * W)


SAVE = jax.checkpoint_policies.everything_saveable

# What is done with the mapped function.
USES = dict(
    value=lambda f, x: f(x),
    grad=lambda f, x: jax.grad(loss(f))(x),
    value_and_grad=lambda f, x: jax.value_and_grad(loss(f))(x),
    vjp=lambda f, x: jax.vjp(f, x)[1](f(x) * W),
    jvp=lambda f, x: jax.jvp(f, (x,), (jnp.sin(x),)),
    linearize=lambda f, x: jax.linearize(f, x)[1](jnp.sin(x)),
    transposed=lambda f, x: jax.linear_transpose(
        jax.linearize(f, x)[1], x)(f(x) * W),
    checkpoint=lambda f, x: jax.grad(loss(jax.checkpoint(f)))(x),
    saved=lambda f, x: jax.grad(loss(jax.checkpoint(f, policy=SAVE)))(x),
    scan=lambda f, x: jax.grad(loss(lambda x: lax.scan(
        lambda c, _: (f(c), None), x, None, length=2)[0]))(x),
    vmap=lambda f, x: jax.vmap(jax.grad(loss(f)))(jnp.stack([x, 2 * x])),
    second=lambda f, x: jax.grad(loss(jax.grad(loss(f))))(x))

# Without jit, where each operation is compiled by itself.
EAGER_BODIES = ['product', 'in_scan', 'in_cond', 'in_jit', 'checkpoint_within',
                'own_jvp', 'own_vjp', 'zero_jvp', 'zero_vjp']
EAGER_USES = ['value', 'grad', 'jvp', 'saved', 'vmap']
RIGHT = ['value', 'jvp']  # within jit, where the axes are named, upstream too

MESHES = [
    ((2, 2), (EXPLICIT, EXPLICIT)), ((1, 2), (EXPLICIT, EXPLICIT)),
    ((4, 1), (EXPLICIT, EXPLICIT)), ((1, 1), (EXPLICIT, EXPLICIT)),
    ((2, 4), (AUTO, EXPLICIT))]


class MappedTestCase(jtu.JaxTestCase):

  def check(self, plain, body, use='grad', jit=True, sizes=(2, 2),
            types=(EXPLICIT, EXPLICIT), manual=('x',), spec=P('x', 'y'), **how):
    """What is mapped over 'x', against each block on one device."""
    names = ('x', 'y', 'z')[:len(sizes)]
    mesh = typed_mesh(sizes, names, types)
    rest = [n for n in names if n not in manual]
    f = shard_map(body, mesh=mesh, in_specs=P('x'), out_specs=P('x'),
                  **partly_manual(*rest, of=names), **how)
    def on_one(x):
      return jnp.concatenate([plain(b) for b in jnp.split(x, sizes[0])])
    kinds = dict(zip(names, types))
    with set_mesh(mesh):
      x = jax.device_put(X, NamedSharding(
          mesh, P(*(n if kinds[n] == EXPLICIT else None for n in spec))))
      got = common.maybe_jit(jit)(lambda x: USES[use](f, x))(x)
      got = jax.tree.map(np.asarray, got)
    want = jax.jit(lambda x: USES[use](on_one, x))(X)
    self.assertAllClose(got, want, rtol=1e-4, atol=1e-5)


@red(FROM_MANUAL)
class ChangedAxesTest(MappedTestCase):

  @parameterized.parameters(*BODIES)
  def test_body(self, name):
    self.check(*BODIES[name])

  @parameterized.parameters(*USES)
  def test_use(self, use):
    self.check(layer, auto(layer), use)

  @red(OTHER_CONTEXT_MESH)
  @parameterized.parameters(*(u for u in USES if u not in RIGHT))
  def test_use_of_named(self, use):
    self.check(layer, auto(layer, axes='y'), use)

  if jax.__version_info__ >= (0, 11):

    @parameterized.product(use=['checkpoint', 'saved'],
                           name=['layer', 'product', 'in_scan'])
    def test_remat3(self, use, name):
      with config.remat3(True):
        self.check(*BODIES[name], use)

  @parameterized.parameters(*MESHES)
  def test_mesh(self, sizes, types):
    self.check(layer, auto(layer), sizes=sizes, types=types)

  @parameterized.parameters(*MESHES)
  def test_mesh_saved(self, sizes, types):
    self.check(product, auto(product), 'saved', sizes=sizes, types=types)

  def test_three_axes(self):
    three = dict(sizes=(2, 2, 2), types=(EXPLICIT,) * 3)
    self.check(layer, auto(layer, P(None, ('y', 'z'))), **three)
    self.check(layer, auto(layer, axes='y'), **three)
    self.check(layer, auto(layer), manual=('x', 'z'), **three)

  def test_unchecked(self):
    self.check(layer, auto(layer), **UNCHECKED)
    self.check(product, auto(product), 'saved', **UNCHECKED)

  @parameterized.parameters('value', 'grad', 'saved')
  def test_explicit(self, use):
    self.check(layer, explicit(layer), use, types=(AUTO, AUTO))
    self.check(layer, explicit(layer), use, types=(EXPLICIT, AUTO))

  @red(FROM_MANUAL, bases='==0.6.0', also='varying')
  def test_gradient_within(self):
    within = lambda f: lambda x: jax.grad(loss(f))(x)
    self.check(within(layer), within(auto(layer)), 'value')

  def test_constraint_within(self):
    def split(x):
      return layer(lax.with_sharding_constraint(x, P(None, 'y')))
    self.check(layer, auto(split))

  @parameterized.parameters(*EAGER_USES)
  def test_eager(self, use):
    self.check(layer, auto(layer), use, jit=not common.RUNS_PARTLY_MANUAL)

  @parameterized.parameters(*EAGER_BODIES)
  def test_eager_body(self, name):
    self.check(*BODIES[name], jit=not common.RUNS_PARTLY_MANUAL)

  def test_eager_second_derivative(self):
    self.check(scaled, scaled_auto, 'second',
               jit=not common.RUNS_PARTLY_MANUAL)

  @red({
      '<0.7': FROM_MANUAL,
      '>=0.7,<0.7.2': CLOSED_OVER_EXPLICIT,
      '>=0.7.2': r'^AssertionError: \(ShapedArray\(int32\[8,1\]',
  })
  def test_taken(self):
    self.check(taken, taken_auto)

  @red({
      '<0.7': FROM_MANUAL,
      '>=0.7,<0.8.1': CLOSED_OVER_EXPLICIT,
      '>=0.8.1,<0.10': ABSTRACT_SHARDING,
      '>=0.10': OTHER_CONTEXT_MESH,
  })
  def test_eager_taken(self):
    self.check(taken, taken_auto, jit=not common.RUNS_PARTLY_MANUAL)

  @red({
      '<0.7': OTHER_CONTEXT_MESH,
      '>=0.7,<0.8.1': CLOSED_OVER_EXPLICIT,
      '>=0.8.1,<0.10': ABSTRACT_SHARDING,
      '>=0.10': OTHER_CONTEXT_MESH,
  })
  def test_eager_named(self):
    self.check(layer, auto(layer, axes='y'), jit=not common.RUNS_PARTLY_MANUAL)

  @parameterized.parameters('value', 'grad')
  def test_eager_explicit(self, use):
    self.check(layer, explicit(layer), use, types=(AUTO, AUTO),
               jit=not common.RUNS_PARTLY_MANUAL)

  def test_eager_axis_of_one_device(self):
    self.check(layer, auto(layer), sizes=(4, 1),
               jit=not common.RUNS_PARTLY_MANUAL)

  def test_layout_over_manual_axis_is_refused(self):
    with self.assertRaisesRegex(
        ValueError, r"auto_axes: its layout .*names \['x'\].*Manual.*leave"):
      self.check(layer, auto(layer, P('x', 'y')))


class KeptTest(MappedTestCase):

  @parameterized.parameters(*RIGHT)
  def test_named_works(self, use):
    self.check(layer, auto(layer, axes='y'), use)

  def test_manual_axis_that_is_named_is_refused(self):
    with self.assertRaisesRegex(NotImplementedError, 'from `Manual`'):
      self.check(layer, auto(layer, axes=('x', 'y')))

  def test_nothing_manual(self):
    mesh = typed_mesh((2, 2), ('x', 'y'), (EXPLICIT, EXPLICIT))
    with set_mesh(mesh):
      x = jax.device_put(X, NamedSharding(mesh, P('x', 'y')))
      got = jax.jit(jax.grad(loss(auto(layer, P('x', 'y')))))(x)
    self.assertAllClose(
        np.asarray(got), np.asarray(jax.grad(loss(layer))(X)), rtol=1e-4)
