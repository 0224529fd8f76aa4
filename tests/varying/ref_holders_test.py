# SPDX-License-Identifier: Apache-2.0
"""Whoever holds a ref sees what is written to it by another name.

A ref that is made from a replicated value and written with one that varies is
replaced or widened while something else holds it too: a transformation's
tracer, a function's argument or closure, a container, another name. A table of
holders, writes and meshes: the program writes by way of the holder and reads by
the names outside. The oracle is the program on each device's part, by itself.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import make_mesh

jax.config.parse_flags_with_absl()

# What pristine JAX says.
UNLIKE_REF = ("^ValueError: Primitive swap requires the value's varying "
              "manual axes to match the Ref's, and the")

# Of a ref and a vector, or of refs' elements.
WRITES = dict(
    all=lambda r, x: r.__setitem__(..., x * 2.),
    first=lambda r, x: r.__setitem__(0, x[0]),
    largest=lambda r, x: r.__setitem__(jnp.argmax(x), 7.),
    add=lambda r, x: r.__setitem__(..., r[...] + x))
MESHES = {'1d': (2,), '2d': (2, 2), 'ones': (2, 1)}
RUNS = (('1d', 'all'), ('1d', 'largest'), ('2d', 'add'), ('ones', 'first'))
X = np.array([[1., 4., 2., 3.], [5., 1., 6., 2.]], np.float32)


def written(write):
  def f(r, x):
    write(r, x)
    return x
  return f


def twice(write, r, x):
  f = jax.jit(lambda x: write(r, x))
  f(x)
  f(x + 1.)


def custom_vjp(fun, fwd, bwd):
  f = jax.custom_vjp(fun)
  f.defvjp(fwd, bwd)
  return f


def in_forward_rule(write, r, x):
  f = custom_vjp(lambda r, x: x, lambda r, x: (written(write)(r, x), None),
                 lambda _, t: (None, t))
  jax.grad(lambda x: jnp.sum(f(r, x)**2))(x)


def in_backward_rule(write, r, x):
  f = custom_vjp(lambda r, x: x, lambda r, x: (x, r),
                 lambda r, t: (None, written(write)(r, t)))
  jax.grad(lambda x: jnp.sum(f(r, x)**2))(x)


def in_custom_vjp(write, r, x):
  custom_vjp(written(write), lambda r, x: (written(write)(r, x), None),
             lambda _, t: (None, t))(r, x)


def in_shard_map(write, r, x):
  mesh = jax.sharding.get_abstract_mesh()
  if not mesh.empty:
    shard_map(written(write), in_specs=(P(), P()), out_specs=P(),
              axis_names={'y'})(r, x)


# How a function of the write reaches the ref.
HOLDERS = dict(
    container=lambda w, r, x: [w(c, x) for c in jax.tree.leaves({'r': [r]})],
    name=lambda w, r, x: (lambda s: w(s, x))(r),
    closure=lambda w, r, x: (lambda: w(r, x))(),
    jit=lambda w, r, x: jax.jit(w)(r, x),
    jit_closure=lambda w, r, x: jax.jit(lambda x: w(r, x))(x),
    jit_jit=lambda w, r, x: jax.jit(
        lambda x: jax.jit(lambda c: w(c, x))(r))(x),
    jit_twice=twice,
    checkpoint=lambda w, r, x: jax.checkpoint(written(w))(r, x),
    checkpoint_closure=lambda w, r, x: jax.checkpoint(
        lambda x: written(w)(r, x))(x),
    fwd=in_forward_rule,
    bwd=in_backward_rule,
    grad=lambda w, r, x: jax.grad(lambda t: (w(r, x), jnp.sum(t))[1])(x),
    vjp=lambda w, r, x: jax.vjp(lambda t: (w(r, x), jnp.sin(t))[1], x)[1](x),
    linearize=lambda w, r, x: jax.linearize(
        lambda t: (w(r, x), jnp.sin(t))[1], x)[1](x),
    jvp=lambda w, r, x: jax.jvp(
        lambda t: (w(r, x), jnp.sin(t))[1], (x,), (x,)),
    scan=lambda w, r, x: lax.scan(
        lambda k, _: (k + 1., w(r, x * k)), 1., None, length=2),
    fori=lambda w, r, x: lax.fori_loop(
        0, 2, lambda i, k: (w(r, x * k), k + 1.)[1], 1.),
    while_loop=lambda w, r, x: lax.while_loop(
        lambda k: k < 3., lambda k: (w(r, x * k), k + 1.)[1], 1.),
    cond=lambda w, r, x: lax.cond(x[0] > 2., lambda: w(r, x), lambda: None),
    cond_operand=lambda w, r, x: lax.cond(
        x[0] > 2., lambda r: w(r, x), lambda r: None, r),
    cond_alike=lambda w, r, x: lax.cond(  # all devices take the same branch
        jnp.arange(2.)[1] > 0., lambda r, x: w(r, x), lambda r, x: None, r, x),
    switch=lambda w, r, x: lax.switch(
        (x[0] > 2.) * 1, [lambda: None, lambda: w(r, x)]),
    grad_scan=lambda w, r, x: jax.grad(lambda t: lax.scan(
        lambda k, _: (k * 1.5, w(r, x)), jnp.sum(t), None, length=2)[0])(x),
)
MAPPED = dict(  # of a ref with more elements
    vmap=lambda w, r, x: jax.vmap(lambda c: w(c, x))(r),
    vmap_values=lambda w, r, x: jax.vmap(w)(r, jnp.stack([x, x * 3., x - 1.])),
    vmap_jit=lambda w, r, x: jax.vmap(jax.jit(lambda c: w(c, x)))(r),
    vmap_jit_closure=lambda w, r, x: jax.vmap(
        lambda c: jax.jit(lambda: w(c, x))())(r),
    jit_vmap=lambda w, r, x: jax.jit(jax.vmap(lambda c: w(c, x)))(r),
    jit_vmap_closure=lambda w, r, x: jax.jit(
        lambda: jax.vmap(lambda c: w(c, x))(r))(),
    vmap_scan=lambda w, r, x: jax.vmap(lambda c: lax.scan(
        lambda k, _: (k + 1., w(c, x * k)), 1., None, length=2)[0])(r),
    scan_vmap=lambda w, r, x: lax.scan(lambda k, _: (
        (k + 1., jax.vmap(lambda c: w(c, x * k))(r))[0], None), 1., None,
                                       length=2),
    vmap_grad=lambda w, r, x: jax.vmap(lambda c: jax.grad(
        lambda t: (w(c, x), jnp.sum(t))[1])(x))(r),
    grad_vmap=lambda w, r, x: jax.grad(lambda t: (
        jax.vmap(lambda c: w(c, x))(r), jnp.sum(t))[1])(x),
    vmap_checkpoint=lambda w, r, x: jax.vmap(
        lambda c: jax.checkpoint(lambda x: written(w)(c, x))(x))(r),
)
NESTED = dict(
    vmap_vmap=lambda w, r, x: jax.vmap(jax.vmap(lambda c: w(c, x)))(r),
    vmap_of_axis_1=lambda w, r, x: jax.vmap(
        jax.vmap(lambda c: w(c, x)), 1)(r),
)
if jax.__version_info__ < (0, 11):
  del NESTED['vmap_of_axis_1']  # wrong without shard_map, too (jax#39288)
SHAPES = {**dict.fromkeys(HOLDERS, (4,)), **dict.fromkeys(MAPPED, (3, 4)),
          **dict.fromkeys(NESTED, (2, 3, 4))}
ALL = {**HOLDERS, **MAPPED, **NESTED}
REFUSED = dict(custom_vjp=in_custom_vjp, inner_shard_map=in_shard_map)


def program(hold, write, shape):
  """The values that two names of a ref read after the write, and one before."""
  def f(x):
    r = jax.new_ref(jnp.zeros(shape))
    other = {'r': [r]}
    before = r[...]
    hold(write, r, x)
    return r[...], other['r'][0][...] * 1., before
  return f


# Up to 0.10.0 vmap of a write at an index fails, without shard_map too.
VMAP_OF_INDEXED = jax.__version_info__ >= (0, 10, 1)


@jtu.with_config(jax_numpy_dtype_promotion='standard',
                 jax_numpy_rank_promotion='allow')
class RefHoldersTest(jtu.JaxTestCase):

  @red({
      '<0.12':
          '^Exception: The branches of cond produced mismatched varying '
          r'manual axes\. Got',
      '>=0.12': UNLIKE_REF,
  }, cases=['cond', 'cond_alike', 'cond_operand', 'switch'])
  @red({
      '<0.12':
          '^ValueError: Scan carry input and output got mismatched varying '
          'manual axes',
      '>=0.12': UNLIKE_REF,
  }, cases=['fori', 'grad_scan', 'scan', 'scan_vmap', 'vmap_scan'])
  @red({
      '<0.12':
          '^ValueError: Primitive mul requires varying manual axes to match, '
          'but got',
      '>=0.12': UNLIKE_REF,
  })
  @parameterized.named_parameters((f'_{name}', name) for name in ALL)
  def test_sees_the_write(self, name):
    for kind, write in RUNS:
      if (write in ('first', 'largest') and 'vmap' in name
          and not VMAP_OF_INDEXED):
        continue
      f = program(ALL[name], WRITES[write], SHAPES[name])
      want = jax.tree.map(lambda *a: np.stack(a), *map(jax.jit(f), X))
      on_devices = jax.jit(shard_map(
          lambda x: jax.tree.map(lambda a: a[None], f(x[0])), in_specs=P('x'),
          out_specs=P('x'), mesh=make_mesh(*MESHES[kind])))
      self.assertAllClose(on_devices(X), want)
    # And so the devices' contents are not given out as one.
    f = program(ALL[name], WRITES['all'], SHAPES[name])
    one = shard_map(lambda x: f(x[0])[0], mesh=make_mesh(2), in_specs=P('x'),
                    out_specs=P())
    with self.assertRaisesRegex(ValueError, 'require replication'):
      jax.jit(one)(X)

  @red({
      '<0.12':
          r'^ValueError: pvary is a invariant->variant collective\. This '
          'means that the axis names mentioned',
      '>=0.12': UNLIKE_REF,
  })
  @parameterized.named_parameters((f'_{name}', name) for name in REFUSED)
  def test_where_types_are_fixed_it_is_refused(self, name):
    f = program(REFUSED[name], WRITES['all'], (4,))
    options = dict(axis_names={'x'}) if name == 'inner_shard_map' else {}
    g = shard_map(lambda x: f(x[0])[0][None], mesh=make_mesh(2, 2),
                  in_specs=P('x'), out_specs=P('x'), **options)
    with self.assertRaisesRegex(TypeError, r'written\s+to a ref of type'):
      jax.jit(g)(X)

  @red(UNLIKE_REF, bases='>=0.12')
  def test_content_read_before_keeps_its_type(self):
    f = program(ALL['vmap'], WRITES['all'], (3, 4))
    g = shard_map(lambda x: f(x[0])[2], mesh=make_mesh(2), in_specs=P('x'),
                  out_specs=P())
    self.assertAllClose(jax.jit(g)(X), jnp.zeros((3, 4)))
