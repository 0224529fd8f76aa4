# SPDX-License-Identifier: Apache-2.0
"""Facts go through calls, branches, loops and refs as values do.

The facts are the names of the arguments that a value is made of. The oracle
calls the function: a result that changes with an argument is made of it.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.mend import abstract
import jax.numpy as jnp
import numpy as np

jax.config.parse_flags_with_absl()

NAMES = 'abcd'
new_ref = (getattr(core, 'new_ref', None) or getattr(core, 'array_ref', None)
           or core.mutable_array)


class Names(abstract.Domain):
  """The domain of the names of the arguments that a value is made of."""

  def join(self, facts):
    return frozenset().union(*facts)

  def free(self, v):
    return frozenset()

  def step(self, eqn, ins):
    every = self.join(ins)
    written = {'swap': {0: every}, 'addupdate': {0: every}}
    return abstract.Found([every] * len(eqn.outvars),
                          written.get(eqn.primitive.name, {}))


class Unchosen(Names):
  """The same, without those of predicates."""

  def chosen(self, facts, predicate):
    return self.join(facts)


class Remembering(Names):
  """The same, of a jaxpr in an equation by what all it is given is made of."""

  def inside(self, jaxpr, ins):
    return abstract.Found([self.join(ins)] * len(jaxpr.outvars))


@jax.custom_jvp
def with_rule(a, b):
  return a * 2, b


with_rule.defjvp(lambda x, t: (with_rule(*x), (t[0] * 2, t[1])))


def solve(a, b, c, d):
  return lax.custom_linear_solve(
      lambda x: x * c, a, lambda matvec, y: y / c + d), b


def rotated(a, b, c, d):
  """Only the third round brings d to the first carry."""
  return lax.scan(lambda carry, _: ((*carry[1:], carry[-1]), None),
                  (a, b, c, d), None, length=3)[0]


def stacked(a, b, c, d):
  def body(carry, x):
    return carry + x * b, (carry, c)
  last, (each, same) = lax.scan(body, a, jnp.stack([d, d]))
  return last, each, same


def counted(a, b, c, d):
  """The first two are changed, the third handed on, the fourth its own."""
  def body(s):
    return s[0] + 1., s[1] * b, jax.jit(lambda x: x)(s[2]), s[3] + 1.
  return lax.while_loop(lambda s: s[3] < d, body, (a, b, c, jnp.zeros(())))


def branch(a, b, c, d):
  return lax.switch(jnp.int32(a), [
      lambda b, c, d: (b, d, c * 2, 1.), lambda b, c, d: (c, d, c, 1.)],
                    b, c, d)


def written_in_a_call(a, b, c, d):
  ref = new_ref(a)
  jax.jit(lambda r, x: r.__setitem__(..., x))(ref, b * c)
  return ref[...], d


def read_in_the_next_round(a, b, c, d):
  ref, last = new_ref(a), new_ref(b)
  def body(_, carry):
    last[...] = ref[...]
    ref[...] = c
    return carry
  lax.fori_loop(0, 2, body, 0)
  return last[...], ref[...], d


# What each result is made of; all that it is made of but for predicates.
PROGRAMS = {
    'jit': (lambda a, b, c, d: jax.jit(lambda a, b: (a * b, b))(a, c),
            'ac c', 'ac c'),
    'remat': (lambda a, b, c, d: jax.checkpoint(
        lambda a, b: (jnp.sin(a), b))(a, d), 'a d', 'a d'),
    'custom_jvp': (lambda a, b, c, d: with_rule(d, b), 'd b', 'd b'),
    'solve': (solve, 'acd b', 'acd b'),
    'rotated': (rotated, 'abcd bcd cd d', 'abcd bcd cd d'),
    'stacked': (stacked, 'abd abd c', 'abd abd c'),
    'counted': (counted, 'ad bd c d', 'a b c -'),
    'branch': (branch, 'abc d ac -', 'bc d c -'),
}
REFS = {
    'written_in_a_call': (written_in_a_call, 'abc d', 'abc d'),
    'read_in_the_next_round': (read_in_the_next_round, 'abc ac d', 'abc ac d'),
}
ARGS = [1., 2., 3., 4.]


def made_of(text):
  return [frozenset(each.replace('-', '')) for each in text.split()]


def facts(domain, f):
  jaxpr = jax.make_jaxpr(f)(*ARGS)
  return abstract.outputs(domain, jaxpr, list(map(frozenset, NAMES))).outs


class FactsTest(jtu.JaxTestCase):

  @parameterized.parameters(*PROGRAMS, *REFS)
  def test_as_listed(self, name):
    f, want, unchosen = {**PROGRAMS, **REFS}[name]
    self.assertEqual(facts(Names(), f), made_of(want))
    self.assertEqual(facts(Unchosen(), f), made_of(unchosen))

  @parameterized.parameters(*PROGRAMS, *REFS)
  def test_what_changes_a_result_is_in_its_fact(self, name):
    f = {**PROGRAMS, **REFS}[name][0]
    found, before = facts(Names(), f), jax.jit(f)(*ARGS)
    changed = 0
    for n, argument in enumerate(NAMES):
      args = [x + 1. * (k == n) for k, x in enumerate(ARGS)]
      for fact, old, new in zip(found, before, jax.jit(f)(*args), strict=True):
        if not np.array_equal(old, new):
          changed += 1
          self.assertIn(argument, fact)
    self.assertGreater(changed, 0)

  def test_of_what_a_jaxpr_captures(self):
    big = np.arange(3.)
    jaxpr = jax.make_jaxpr(lambda a: (a + big, big * 2))(1.).jaxpr
    self.assertEqual(abstract.outputs(
        Names(), jaxpr, [frozenset('a')]).outs, made_of('a -'))

  def test_a_domain_can_tell_of_jaxprs_inside(self):
    f = lambda a, b, c, d: jax.jit(lambda a, b: (a, b))(a, b)
    self.assertEqual(facts(Names(), f), made_of('a b'))
    self.assertEqual(facts(Remembering(), f), made_of('ab ab'))

  def test_writes_are_told_by_the_number_of_the_input(self):
    def write(r, s, x):
      s[...] = x * r[...]
    f = jax.make_jaxpr(lambda a, b, c: jax.jit(write)(
        new_ref(a), new_ref(b), c))(*ARGS[:3])
    call = next(e for e in f.jaxpr.eqns if 'jaxpr' in e.params)
    found = abstract.of_equation(
        Names(), call, list(map(frozenset, 'abc')))
    self.assertEqual(found.writes, {1: frozenset('abc')})

  @parameterized.parameters(True, False)
  def test_ends_of_a_loop(self, chosen):
    eqn, = jax.make_jaxpr(lambda a, b, c: lax.while_loop(
        lambda s: s[1] < a, lambda s: (s[0] + b, s[1] + 1.), (c, 0.)))(
            *ARGS[:3]).eqns
    args = dict(zip(
        [v for v in eqn.invars if isinstance(v, core.Var)], 'abc'))
    ends = abstract.of_loop(
        Names() if chosen else Unchosen(), abstract.anatomy.loop(eqn),
        [frozenset(args.get(v, '') if isinstance(v, core.Var) else '')
         for v in eqn.invars])
    self.assertEqual(ends.predicate, frozenset('a'))
    self.assertEqual(ends.inputs, made_of('b abc a' if chosen else 'b bc -'))
    self.assertEqual(ends.outs, made_of('abc a' if chosen else 'bc -'))


class InputsOfResultsTest(jtu.JaxTestCase):

  @parameterized.parameters(
      (lambda a, b: (b, a * 2, b, 1.), (1, None, 1, None)),
      (lambda a, b: jax.jit(lambda a, b: (b, a))(a, b), (1, 0)),
      (lambda a, b: lax.cond(a > 0, lambda: (a, b), lambda: (b, b)), (None, 1)),
      (lambda a, b: lax.cond(a > 0, lambda: (a, a), lambda: (a + 1, a)),
       (None, 0)),
      (lambda a, b: lax.fori_loop(0, 3, lambda _, s: (s[0], s[1] + 1), (b, a)),
       (1, None)),
      (lambda a, b: lax.fori_loop(0, 3, lambda _, s: (s[1], s[0]), (b, a)),
       (None, None)),
      (lambda a, b: lax.while_loop(lambda s: s[1] < a, lambda s: (
          jax.checkpoint(lambda x: x)(s[0]), s[1] + 1), (a, b)), (0, None)),
      (lambda a, b: lax.scan(lambda c, x: (c, (x, c)), a, jnp.stack([b]))[1],
       (None, None)),
      (lambda a, b: lax.optimization_barrier((b, a)), (1, 0)),
  )
  def test_of(self, f, want):
    jaxpr = jax.make_jaxpr(f)(1., 2.).jaxpr
    self.assertEqual(abstract.inputs_of_results(jaxpr), want)
