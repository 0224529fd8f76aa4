# SPDX-License-Identifier: Apache-2.0
"""Inner jaxprs of equations have the operands and results that are said.

Each operand, carry and result has a shape of its own, so that a jaxpr's inputs
and outputs tell by their shapes what they are.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.custom_derivatives import linear_call
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
import jax.numpy as jnp

jax.config.parse_flags_with_absl()


def sized(*sizes):
  return [jnp.ones(n) for n in sizes]


def scan(a, b, c, xs):
  def body(carry, x):
    return [carry[0] + a.sum(), carry[1] * b.sum()], (x.sum(), carry[0])
  return lax.scan(body, [c, jnp.ones(7)], xs)


def while_loop(a, b, c, d):
  return lax.while_loop(
      lambda s: s[0].sum() < a.sum() * b.sum(),
      lambda s: [s[0] + c.sum(), s[1] * 2], [d, jnp.ones(7)])


def cond(a, b, c, d):
  return lax.cond(a.sum() > 0, lambda b, c: (b, c * 2),
                  lambda b, c: (b + 1, c), b, c * d.sum())


def solve(a, b, c, d):
  matrix, scale = jnp.outer(a, a), b.sum()
  return lax.custom_linear_solve(
      lambda x: matrix @ x * c.sum(), a * d.sum(),
      lambda _, y: y * scale, lambda _, y: y / scale)


@jax.custom_jvp
def with_jvp(a, b):
  return a * 2, b


with_jvp.defjvp(lambda x, t: (with_jvp(*x), (t[0] * 2, t[1])))


@jax.custom_vjp
def with_vjp(a, b):
  return a * 2, b


with_vjp.defvjp(lambda a, b: (with_vjp(a, b), None),
                lambda _, ct: (ct[0] * 2, ct[1]))


@jax.custom_batching.custom_vmap
def with_vmap(a, b):
  return a * 2, b


with_vmap.def_vmap(lambda size, batched, a, b: ((a * 2, b), tuple(batched)))


def linear(a, b, c, d):
  del d
  return linear_call(lambda r, x: x * r.sum(), lambda r, y: y * r.sum(),
                     a * b.sum(), c)


LOOPS = {'scan': scan, 'while': while_loop}
CALLS = {
    'jit': lambda a, b, c, d: jax.jit(lambda a, b: (a * 2, b))(a, b),
    'remat2': lambda a, b, c, d: jax.checkpoint(
        lambda a, b: (jnp.sin(a), b))(a, b),
    'custom_jvp_call': lambda a, b, c, d: with_jvp(a, b),
    'custom_vjp_call': lambda a, b, c, d: with_vjp(a, b),
    'custom_vmap_call': lambda a, b, c, d: with_vmap(a, b),
    'linear_call': linear}
HOLDING = {**LOOPS, **CALLS, 'cond': cond, 'custom_linear_solve': solve}


def equation(name):
  """The equation of the primitive, and the jaxpr that it is in."""
  jaxpr = jax.make_jaxpr(HOLDING[name])(*sized(2, 3, 4, 5)).jaxpr
  kind = {'jit': ('jit', 'pjit'), 'custom_vjp_call': (
      'custom_vjp_call', 'custom_vjp_call_jaxpr')}.get(name, (name,))
  eqn, = (e for e in jaxpr.eqns if e.primitive.name in kind)
  return eqn


def shapes(variables):
  return [v.aval.shape for v in variables]


class AnatomyTest(jtu.JaxTestCase):

  @parameterized.parameters(*HOLDING)
  def test_inputs_are_the_operands_and_outputs_the_results(self, name):
    eqn = equation(name)
    over = {'scan': -1}.get(name)  # the last operand and results have its axis
    looked_at = 0
    for inner in anatomy.inner(eqn):
      jaxpr = jaxprs.open_jaxpr(inner.jaxpr)
      want = [None if n is None else eqn.invars[n].aval.shape
              for n in inner.operands]
      if over:
        want[over] = want[over][1:]
      self.assertEqual([None if n is None else v.aval.shape for n, v in zip(
          inner.operands, jaxpr.invars, strict=True)], want)
      looked_at += len(want) - want.count(None)
      if inner.results is not None:
        want = shapes(eqn.outvars[n] for n in inner.results)
        if over:
          want[2:] = [s[1:] for s in want[2:]]
        self.assertEqual(shapes(jaxpr.outvars), want)
    self.assertGreater(looked_at, 0)

  @parameterized.parameters(*LOOPS)
  def test_carries_are_what_becomes_of_them(self, name):
    eqn = equation(name)
    loop = anatomy.loop(eqn)
    self.assertEqual(loop.carries, 2)
    self.assertEqual(shapes(loop.body.invars[n] for n in loop.own),
                     shapes(loop.body.outvars[:2]))
    tests, consts, carries, xs = loop.split(eqn.invars)
    self.assertEqual([*tests, *consts, *carries, *xs], eqn.invars)
    self.assertEqual(shapes(carries), shapes(eqn.outvars[:2]))
    self.assertIs(eqn.invars[loop.first], carries[0])
    self.assertEqual(len(xs), name == 'scan')
    self.assertEqual(len(tests), 2 * (name == 'while'))
    for inner in anatomy.inner(eqn):
      self.assertEqual(
          shapes(jaxprs.open_jaxpr(inner.jaxpr).invars[n]
                 for n in inner.carries), shapes(carries))

  def test_roles(self):
    of = lambda name: [i.role for i in anatomy.inner(equation(name))]
    self.assertEqual(of('while'), ['predicate', 'body'])
    self.assertEqual(of('scan'), ['body'])
    self.assertEqual(of('cond'), ['branch', 'branch'])
    self.assertEqual(of('custom_linear_solve'),
                     ['matvec', 'vecmat', 'solve', 'transpose_solve'])
    for name in CALLS:
      self.assertEqual(of(name), ['call'])

  @parameterized.parameters(*CALLS, 'custom_linear_solve')
  def test_what_is_called_gives_the_results(self, name):
    eqn = equation(name)
    args = [i + 1 + jnp.arange(v.aval.size, dtype=v.aval.dtype).reshape(
        v.aval.shape) for i, v in enumerate(eqn.invars)]
    inner = anatomy.called(eqn)
    got = core.eval_jaxpr(
        jaxprs.open_jaxpr(inner.jaxpr), getattr(inner.jaxpr, 'consts', ()),
        *(args[n] for n in inner.operands))
    self.assertAllClose(got, jaxprs.bind_again(eqn, args, eqn.params))

  @parameterized.parameters('scan', 'while', 'cond')
  def test_loops_and_branches_are_no_calls(self, name):
    eqn = equation(name)
    self.assertIsNone(anatomy.called(eqn))
    self.assertIsNone(anatomy.CALLS[eqn.primitive])
    self.assertEqual(anatomy.loop(eqn) is not None, name in LOOPS)

  def test_unknown_primitives_have_jaxprs_without_operands(self):
    eqn = jax.make_jaxpr(lambda x: lax.reduce(
        x, 0., lambda a, b: a + 2 * b, (0,)))(jnp.ones(3)).eqns[0]
    inner, = anatomy.inner(eqn)
    self.assertIsNone(inner.role)
    self.assertEqual(inner.operands, [None, None])
    self.assertLen(inner.jaxpr.invars, 2)


class TableTest(jtu.JaxTestCase):

  def test_primitives_of_other_libraries_have_no_row(self):
    for table in (anatomy.CALLS, anatomy.CASTS, anatomy.REDUCTIONS):
      for name in anatomy.named(table):
        theirs = core.Primitive(name)
        theirs.def_abstract_eval(lambda x: x)
        self.assertIsNone(table[theirs], name)

  def test_primitives_of_jax_have_theirs(self):
    self.assertEqual(anatomy.CALLS[equation('jit').primitive], anatomy.JIT)
    self.assertEqual(anatomy.REDUCTIONS[lax.psum_p].how, 'psum')
    self.assertEqual(anatomy.CASTS[core.pvary_p], anatomy.VARYING)
    self.assertTrue(anatomy.COPIES[lax.copy_p])
    self.assertIsNone(anatomy.CASTS[lax.psum_p])

  def test_names_of_some_rows(self):
    self.assertEqual(anatomy.named(anatomy.CALLS, anatomy.VJP),
                     ('custom_vjp_call', 'custom_vjp_call_jaxpr'))
    self.assertContainsSubset(anatomy.named(anatomy.CALLS, anatomy.JIT),
                              anatomy.named(anatomy.CALLS))
