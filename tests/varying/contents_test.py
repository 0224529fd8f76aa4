# SPDX-License-Identifier: Apache-2.0
"""What is found in the parameters of every primitive that holds a jaxpr.

The oracle opens whatever a parameter reaches, by its attributes, and isn't told
of any primitive.
"""
import gc
import types

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.mend import jaxprs
from jax._src.varying import contents
from jax._src.varying import types as vt
from jax.experimental import custom_partitioning as cp
from jax.experimental.compute_on import compute_on
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from testing.sharding import shard_map
from varying.testing.common import make_mesh

jax.config.parse_flags_with_absl()

# Jaxprs aren't looked for in what these reach: every module, in the end.
_OPAQUE = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType,
           types.MethodType, type, core.Primitive, core.AbstractValue, core.Var,
           jax.sharding.Mesh, jax.Array)


def reached(value, seen):
  """The jaxprs that can be reached from a value, but not through another."""
  if id(value) in seen or isinstance(value, _OPAQUE):
    return
  seen[id(value)] = value
  if type(value) in jaxprs.CLASSES:
    yield vt.open_jaxpr(value)
    return
  for x in gc.get_referents(value):
    yield from reached(x, seen)


def custom_jvp(x):
  f = jax.custom_jvp(jnp.sin)
  f.defjvp(lambda primals, tangents: (jnp.sin(*primals), *tangents))
  return f(x)


def custom_vjp(x):
  f = jax.custom_vjp(jnp.sin)
  f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (ct * jnp.cos(x),))
  return f(x)


def custom_vmap(x):
  f = jax.custom_batching.custom_vmap(jnp.sin)
  f.def_vmap(lambda size, mapped, x: (jnp.sin(x), True))
  return f(x)


def partitioned(x):
  f = cp.custom_partitioning(jnp.sin)
  f.def_partition(partition=lambda *_: None,
                  infer_sharding_from_operands=lambda *_: None,
                  sharding_rule='i -> i')
  return f(x)


def linear_call(x):
  f = lambda r, t: r * t
  return jax.custom_derivatives.linear_call(f, f, x, x)


def solve(x):
  return lax.custom_linear_solve(lambda v: 2 * v, x, lambda _, b: b / 2,
                                 symmetric=True)


def with_ref(x):
  r = jax.new_ref(x)
  lax.fori_loop(0, 2, lambda i, _: r.__setitem__(i, 1.), None)
  return r[...]


@jax.jit
def on_host(x):
  if hasattr(jax, 'memory'):
    return x
  with compute_on('device_host'):
    return jax.jit(jnp.sin)(x)


PROGRAMS = dict(
    branch=lambda x: lax.cond(x[0] > 0, jnp.sin, jnp.cos, x),
    checkpoint=jax.checkpoint(jnp.sin),
    composite=lax.composite(jnp.sin, 'test.sin'),
    custom_jvp=custom_jvp,
    custom_linear_solve=solve,
    custom_root=lambda x: lax.custom_root(
        lambda y: y - x, x, lambda f, y: y - f(y),
        lambda g, y: y / g(jnp.ones(3))),
    custom_vjp=custom_vjp,
    custom_vmap=custom_vmap,
    fori=lambda x: lax.fori_loop(0, 2, lambda _, x: jnp.sin(x), x),
    gradient=jax.grad(lambda x: jax.checkpoint(custom_vjp)(x).sum()),
    jit=jax.jit(jnp.sin),
    jvp=lambda x: jax.jvp(jax.checkpoint(solve), (x,), (x,)),
    linear_call=linear_call,
    nested=lambda x: lax.scan(lambda c, _: (solve(c), linear_call(c)), x, None,
                              length=2),
    on_host=on_host,
    partitioned=partitioned,
    platform=lambda x: lax.platform_dependent(
        x, cpu=jnp.sin, default=jnp.cos),
    reduction=lambda x: lax.reduce(x, 0., lambda a, b: a + 2 * b, (0,)),
    scatter=lambda x: x.at[jnp.array([0, 0])].add(1.),
    scan=lambda x: lax.scan(lambda c, a: (c + a, a), x[0], x),
    sort=jnp.sort,
    switch=lambda x: lax.switch(
        jnp.int32(x[0]), [jnp.sin, jnp.cos, jnp.tan], x),
    while_loop=lambda x: lax.while_loop(lambda x: x[0] < 2, jnp.exp, x),
    window=lambda x: lax.reduce_window(x, 0., lambda a, b: a + 2 * b, (2,),
                                       (1,), 'VALID'),
)
if hasattr(jax, 'new_ref'):
  PROGRAMS['with_ref'] = with_ref


def holders(jaxpr):
  """The equations that hold a jaxpr, with what the oracle finds in them."""
  for eqn in jaxpr.eqns:
    found = list(reached(list(eqn.params.values()), {}))
    if found:
      yield eqn, found
    for sub in found:
      yield from holders(sub)


class ContentsTest(jtu.JaxTestCase):

  def check(self, jaxpr):
    names = set()
    for eqn, wanted in holders(jaxpr):
      names.add(eqn.primitive.name)
      ids = set(map(id, wanted))
      got = set(map(id, contents.jaxprs_in(eqn.params)))
      self.assertEqual(got, ids, eqn.primitive.name)
      upstream = map(vt.open_jaxpr, core.jaxprs_in_params(eqn.params))
      self.assertLessEqual(set(map(id, upstream)), got)
      replaced = []
      def note(jaxpr):
        replaced.append(id(jaxpr))
        return jaxpr
      for value in eqn.params.values():
        self.assertIs(jaxprs.map_jaxprs(note, value), value)
      if eqn.primitive.name != 'call_hi_primitive':
        self.assertEqual(set(replaced), ids, eqn.primitive.name)
    return names

  @parameterized.product(name=[*PROGRAMS])
  def test_every_jaxpr_is_found(self, name):
    self.check(jax.make_jaxpr(PROGRAMS[name])(jnp.ones(3)).jaxpr)

  @parameterized.product(name=['branch', 'custom_linear_solve', 'nested'])
  def test_inside_shard_map(self, name):
    mapped = shard_map(lambda x: jax.tree.leaves(PROGRAMS[name](x))[0],
                       mesh=make_mesh(2), in_specs=P('x'), out_specs=P('x'))
    names = self.check(jax.make_jaxpr(mapped)(jnp.ones(6)).jaxpr)
    self.assertIn('shard_map', names)

  def test_the_primitives_are_there(self):
    names = set()
    for f in PROGRAMS.values():
      names |= self.check(jax.make_jaxpr(f)(jnp.ones(3)).jaxpr)
    self.assertLessEqual({
        'cond', 'while', 'scan', 'custom_linear_solve', 'custom_jvp_call',
        'custom_vmap_call', 'linear_call', 'composite', 'reduce',
        'custom_partitioning'}, names)

  def test_derivative_rules_that_are_operations(self):
    if not hasattr(jax.config, 'jax_custom_vjp3'):
      self.skipTest('before 0.12 such rules are calls')
    with jtu.global_config_context(jax_custom_vjp3=True):
      names = self.check(jax.make_jaxpr(custom_vjp)(jnp.ones(3)).jaxpr)
    self.assertIn('call_hi_primitive', names)

  def test_named_tuples_lists_and_dicts(self):
    jaxpr = jax.make_jaxpr(jnp.sin)(1.)
    eqn, = jax.make_jaxpr(solve)(jnp.ones(3)).jaxpr.eqns
    inside = eqn.params['jaxprs']
    other = jax.make_jaxpr(jnp.cos)(1.)
    value = {'a': [inside, 1], 'b': (jaxpr, 'c')}
    new = jaxprs.map_jaxprs(lambda _: vt.open_jaxpr(other), value)
    self.assertIs(type(new['a'][0]), type(inside))
    self.assertIs(vt.open_jaxpr(new['a'][0].solve), vt.open_jaxpr(other))
    self.assertIs(vt.open_jaxpr(new['b'][0]), vt.open_jaxpr(other))
    self.assertEqual((new['a'][1], new['b'][1]), (1, 'c'))
