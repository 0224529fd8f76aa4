# SPDX-License-Identifier: Apache-2.0
"""jax.debug.check_replication: the first place where devices differ.

What differs is put in by hand (``tell_apart``, copies of an argument), so that
line, axis, iteration and values are known; and programs in which nothing does
must give what they give without it.
"""
import faulthandler
import inspect
import itertools
import re
import warnings

from absl.testing import parameterized
from sanitizer.testing.apart import mapped, tell_apart, XY
from sanitizer.testing.pages import run_docstrings
from sanitizer.testing.replicated import copies, RIGHT, rows
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.experimental import io_callback
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices, partly_manual, UNCHECKED

jax.config.parse_flags_with_absl()
eight_devices()

NOT_THERE = (r"^AttributeError: module 'jax\.debug' has no attribute "
             "'check_replication'")


@red(NOT_THERE, bases='<0.6', api_missing=True, also='replication')
@red(NOT_THERE, bases='>=0.6', api_missing=True)
@jtu.with_config(jax_numpy_rank_promotion='allow')
class CheckReplicationTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    # Devices that wait for each other would do so for ever.
    faulthandler.dump_traceback_later(400, exit=True)
    self.addCleanup(faulthandler.cancel_dump_traceback_later)
    self.enter_context(warnings.catch_warnings())
    warnings.simplefilter('error', UserWarning)
    self.mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), XY)

  def said(self, f, *args, **kwargs):
    """The message of the difference that is found."""
    check = jax.debug.check_replication
    with self.assertRaises(jax.debug.ReplicationError) as e:
      check(f, **kwargs)(*args)
    return str(e.exception)

  def assertFound(self, said, line, *parts, axis='x', name='tell_apart'):
    """The message names a line by its text, an axis, and more."""
    self.assertStartsWith(
        said, f'jax.debug.check_replication: `{name}` should be the same along'
        f" '{axis}' and is not.\n")
    self.assertIn(line, said.splitlines()[1])
    self.assertIn('check_replication_test.py:', said.splitlines()[1])
    for part in parts:
      self.assertIn(part, said)

  @parameterized.product(jit=[False, True], shape=[(4,), (2, 2), (4, 1)])
  def test_names_line_and_values(self, jit, shape):
    check = jax.debug.check_replication
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(shape), XY[:len(shape)])
    def f(a):
      y = lax.psum(a.sum(), mesh.axis_names)
      y = tell_apart(y)  # this line
      return y * 2
    f = mapped(f, mesh, P(*mesh.axis_names))
    f = jax.jit(f) if jit else f
    with self.assertRaises(jax.debug.ReplicationError) as e:
      check(f)(jnp.ones(shape + (1,)))
    n = shape[0]
    values = '; '.join(f'{4 + i} on x={i}' for i in range(n))
    self.assertFound(str(e.exception), 'tell_apart(y)', f'\n  {values}',
                     'Its operands agree: devices first differ here.',
                     '-> float32[]')

  def test_one_axis_of_two_and_where(self):
    def f(a, w):
      s = w + lax.psum(a, 'x').sum()  # varies along y
      return lax.psum(tell_apart(s, 'x'), 'y')
    said = self.said(mapped(f, self.mesh, (P(*XY), P())), rows() * 0,
                     jnp.zeros(3))
    self.assertFound(said, 'tell_apart(s', '3 of 3 elements differ, first [0]: '
                     '0 on x=0; 1 on x=1, where y=0')

  def test_an_element(self):
    def f(w):
      return tell_apart(w, 'y', jnp.array([[0, 0], [0, 7], [1, 0]]))
    said = self.said(mapped(f, self.mesh, P()), jnp.zeros((3, 2)))
    self.assertFound(said, 'tell_apart(w', '2 of 6 elements differ, first '
                     '[1, 1]: 0 on y=0; 7 on y=1, where x=0', axis='y')

  @parameterized.parameters('scan', 'reversed', 'fori', 'while', 'two')
  def test_iteration(self, kind):
    def step(i, c):
      return tell_apart(c, at=i == 2) + 1
    def f(w):
      if kind == 'while':
        return lax.while_loop(lambda c: c[0] < 4,
                              lambda c: (c[0] + 1, step(*c)), (0, w))[1]
      if kind == 'fori':
        return lax.fori_loop(0, 4, step, w)
      inner = lambda c, i: (step(i, c), None)
      if kind == 'two':
        inner = lambda c, j: (lax.fori_loop(
            0, 2, lambda k, c: step(2 * j + k, c), c), None)
      return lax.scan(inner, w, jnp.arange(4), reverse=kind == 'reversed')[0]
    said = self.said(mapped(f, self.mesh, P()), jnp.float32(0))
    parts = {'two': ['in iteration 0 of the', 'in iteration 1 of the scan at']
             }.get(kind, ['in iteration 2 of the'])
    at = 1 if kind == 'reversed' else 2
    self.assertFound(said, 'tell_apart(c, at=i == 2)', *parts,
                     f'{at} on x=0; {at + 1} on x=1')

  def test_iteration_around_a_shard_map(self):
    f = mapped(lambda c, i: tell_apart(c, at=i == 1) + 1, self.mesh, P())
    def g(w):
      return lax.scan(lambda c, i: (f(c, i), None), w, jnp.arange(3))[0]
    self.assertFound(self.said(g, jnp.float32(0)), 'tell_apart(c',
                     'in iteration 1 of the scan at', '1 on x=0; 2 on x=1')

  @parameterized.parameters(True, False)
  def test_predicate_that_differs_stops_all(self, predicate_only):
    def f(a):
      n = lax.psum(a, XY) * 0 + 2
      return lax.while_loop(
          lambda c: c[0] < tell_apart(n, at=2),
          lambda c: (c[0] + 1, c[1] + lax.psum(a, XY)), (0., 0.))[1]
    said = self.said(mapped(f, self.mesh, P()), jnp.float32(1),
                     functions=[] if predicate_only else None)
    if predicate_only:
      self.assertStartsWith(said, 'jax.debug.check_replication: the predicate '
                            "of the while loop should be the same along 'x'")
      self.assertIn('in iteration 2 of the while loop', said)
      self.assertIn('False on x=0; True on x=1', said)
    else:
      self.assertFound(said, 'tell_apart(n', 'in iteration 0 of the while loop')

  def test_branch_that_differs(self):
    def f(a):
      y = lax.psum(a, XY) * 0
      return lax.cond(tell_apart(y) > 0, lambda: lax.psum(a, XY), lambda: y)
    said = self.said(mapped(f, self.mesh, P()), jnp.float32(1), functions=[])
    self.assertStartsWith(said, 'jax.debug.check_replication: the choice of a '
                          "branch should be the same along 'x'")
    self.assertIn('0 on x=0; 1 on x=1', said)

  @red(NOT_THERE, bases='>=0.6', api_missing=True, also='varying')
  @parameterized.product(how=['gathered', 'passed', 'admitted'],
                         loop=[False, True])
  def test_claims_are_compared_and_counted(self, how, loop):
    """Predicates that vary by their type, and are to be the same."""
    check = jax.debug.check_replication
    before = jax.config.jax_allow_divergent_collectives
    self.addCleanup(
        jax.config.update, 'jax_allow_divergent_collectives', before)
    jax.config.update('jax_allow_divergent_collectives', how == 'admitted')
    def choose(p, a):
      if loop:
        return lax.while_loop(lambda c: c[0] < p, lambda c: (
            c[0] + 1., c[1] + lax.psum(a, 'x')), (0., 0. * a))[1]
      return lax.cond(p > 1., lambda: a + lax.psum(a, 'x'), lambda: a)
    def f(a, p):
      p = p if how == 'admitted' else lax.all_gather(p, 'x').max()
      return (jax.jit(choose) if how == 'passed' else choose)(p, a)
    mesh = Mesh(np.array(jax.devices()[:2]), ('x',))
    f = mapped(lambda a, p, f=f: f(a[0], p[0])[None], mesh, P('x'), P('x'))
    a = np.array([5., 8.], np.float32)
    same, others = np.float32([2., 2.]), np.float32([2., 1.])
    g = check(f)
    self.assertEqual(g.claims, 0)
    want = np.full(2, 26) if loop else a + 13
    self.assertAllClose(g(a, same), want.astype(np.float32))
    if how != 'admitted' and jax.__version_info__ < (0, 6):
      # Types say there that what is gathered is the same.
      self.assertEqual(g.claims, 0)
      return
    self.assertEqual(g.claims, 1)
    if how != 'admitted':
      self.assertAllClose(g(a, others), want.astype(np.float32))
      return
    said = self.said(f, a, others)
    self.assertStartsWith(said, 'jax.debug.check_replication: the ' + (
        'predicate of the while loop' if loop else 'choice of a branch') +
        " should be the same along 'x' and is not.")

  def test_unreduced_values_may_differ(self):
    def f(a):
      if hasattr(lax, 'pcast'):  # before 0.8.2 parts of a sum are varying
        a = lax.pcast(a, 'x', to='unreduced')
      return lax.psum_scatter(a, 'x', scatter_dimension=0, tiled=True)
    mesh = Mesh(np.array(jax.devices()[:2]), ('x',))
    a = np.arange(8, dtype=np.float32)
    g = mapped(f, mesh, P('x'), P('x'))
    got = jax.debug.check_replication(g)(a)
    self.assertAllClose(got, a[:4] + a[4:])

  @red(NOT_THERE, bases='>=0.6', api_missing=True, also='varying')
  def test_within_a_branch_that_parts_devices(self):
    def f(a):
      i = lax.axis_index('x')
      y = lax.cond(i == 1, lambda: tell_apart(lax.psum(a, 'y'), 'y'),
                   lambda: lax.psum(a, 'y'))
      return lax.psum(y, XY)
    said = self.said(mapped(f, self.mesh, P()), jnp.float32(1))
    self.assertFound(said, "tell_apart(lax.psum(a, 'y'), 'y')",
                     '2 on y=0; 3 on y=1, where x=1', axis='y')

  def test_argument_whose_copies_differ(self):
    f = mapped(lambda w: w * 2, self.mesh, P())
    said = self.said(f, copies(self.mesh, P(), at=2))
    self.assertRegex(said, r'the argument `w`, whose in_spec is P(artitionSpec)'
                     r"?\(\), should be the same along 'x' and is not")
    self.assertIn('3 of 3 elements differ, first [0]: 0 on x=0; 1 on x=1, '
                  'where y=0', said)

  @parameterized.parameters(
      ([1., -1.], [-1., 1.]), ([2., 5., 0.], [0., 5., 2.]),
      ([True, False, False, True], [False, True, True, False]),
      (np.eye(3), np.eye(3)[[1, 2, 0]]))
  def test_values_that_differ_in_their_places(self, one, other):
    held = [jax.device_put(np.array(v, np.asarray(one).dtype), d) for v, d in
            zip((one, one, other, other), self.mesh.devices.flat)]
    w = jax.make_array_from_single_device_arrays(
        held[0].shape, jax.sharding.NamedSharding(self.mesh, P()), held)
    said = self.said(mapped(lambda w: w, self.mesh, P()), w)
    self.assertIn("should be the same along 'x' and is not", said)

  @parameterized.product(
      dtype=['bool', 'int4', 'uint8', 'int32', 'bfloat16', 'float16',
             'float8_e4m3fn', 'complex64', 'key'])
  def test_dtypes(self, dtype):
    if dtype == 'key':
      f = lambda w: jax.random.split(jax.random.wrap_key_data(w))
      w = copies(self.mesh, P(), 1, (2,), np.uint32)
    else:
      f = lambda w: w.reshape(3, 1)
      w = copies(self.mesh, P(), 1, (3,), jnp.dtype(dtype))
    said = self.said(mapped(f, self.mesh, P()), w)
    self.assertIn("should be the same along 'x' and is not", said)
    self.assertRegex(said, r'\d of \d elements differ, first \[0\]: '
                     r'(True|1|\(1\+.*) on x=0; (False|0|0j) on x=1, where y=1')

  def test_signs_of_zero_and_nan(self):
    check = jax.debug.check_replication
    def f(w, x):
      return w * jnp.nan, -(x * lax.psum(0., XY))
    f = mapped(f, self.mesh, P())
    nan, zero = check(f)(jnp.ones(2), jnp.ones(()))
    self.assertTrue(np.isnan(nan).all() and np.signbit(zero))
    def g(w):
      one = tell_apart(w) * 2 - 1  # not compared
      return jnp.copysign(w, one), 0
    said = self.said(mapped(g, self.mesh, P(), (P(), P())), jnp.float32(0),
                     functions=[])
    self.assertIn('result 0 of the shard_map', said)
    self.assertIn('-0 on x=0; 0 on x=1', said)

  def test_tolerance(self):
    f = mapped(lambda w: tell_apart(w), self.mesh, P())
    w = jnp.array([1e6, jnp.inf, jnp.nan])
    got = jax.debug.check_replication(f, rtol=1e-5)(w)
    self.assertAllClose(got, w, rtol=1e-5)
    self.assertFound(self.said(f, w, rtol=1e-7), 'tell_apart(w)',
                     '1 of 3 elements differ, first [0]')
    self.assertFound(self.said(f, w), 'tell_apart(w)')

  def test_parts_of_a_program(self):
    def first(w):
      return tell_apart(w)
    def second(w):
      return tell_apart(w, at=2)
    g = mapped(lambda w: (lax.pmax(first(w) * 0, XY), second(w)), self.mesh,
               P(), (P(), P('x')), **UNCHECKED)
    w = jnp.ones(1)
    self.assertFound(self.said(g, w), 'tell_apart(w)')
    for functions in (['second'], [second]):
      self.assertFound(self.said(g, w, functions=functions), 'at=2')
    jax.debug.check_replication(g, functions=['neither'])(w)
    jax.debug.check_replication(g, max_checks=0)(w)
    self.assertFound(self.said(g, w, max_checks=1), 'tell_apart(w)')

  def test_unchecked_result(self):
    f = mapped(lambda a: a.sum() + 0, self.mesh, P(*XY), **UNCHECKED)
    said = self.said(f, rows() * 7)
    self.assertStartsWith(
        said, 'jax.debug.check_replication: result 0 of the shard_map, whose '
        'out_spec is P')
    self.assertIn('10 on x=0; 42 on x=1, where y=0', said)

  def test_unchecked_below(self):
    if not hasattr(jax, 'shard_map'):  # nested ones are of other axes
      f = lambda a: mapped(lambda a: a.sum(), self.mesh, P('x'), **UNCHECKED,
                           **partly_manual('y', of=XY))(a) * 2
    else:
      def f(a):
        g = jax.shard_map(lambda a: a.sum(), in_specs=P(None, 'y'),
                          out_specs=P(), axis_names={'y'}, check_vma=False)
        return lax.psum(g(a), 'x')
      f = mapped(f, self.mesh, P('x'), axis_names={'x'})
    self.assertIn('result 0 of the shard_map', self.said(f, rows()))

  def test_map_in_a_map_over_the_same_axes(self):
    def outer(inner):
      options = dict(in_specs=P(), out_specs=P())
      g = (jax.shard_map(inner, **options) if hasattr(jax, 'shard_map') else
           mapped(inner, self.mesh, **options))
      return jax.jit(mapped(lambda a: lax.psum(g(a).sum(), XY), self.mesh,
                            P(*XY)))
    f = jax.debug.check_replication(outer(lambda a: a * 2))
    if jax.__version_info__ < (0, 5, 3):  # XLA would end the process
      with self.assertRaisesRegex(NotImplementedError, 'all of which are'):
        f(rows())
      return
    self.assertAllClose(f(rows()), 2 * rows().sum())
    f = outer(lambda a: tell_apart(lax.psum(a, XY)))
    self.assertFound(self.said(f, rows()), 'tell_apart(lax.psum(a')

  def test_backward_pass(self):
    check = jax.debug.check_replication
    @jax.custom_vjp
    def g(w):
      return jnp.sin(w)
    def backward(w, c):
      return tell_apart(c * jnp.cos(w)),
    g.defvjp(lambda w: (g(w), w), backward)
    f = mapped(lambda w: g(w).sum(), self.mesh, P())
    check(f)(jnp.zeros(2))
    # The line is that of the call, or of the rule.
    self.assertFound(self.said(jax.grad(f), jnp.zeros(2)), '(w)',
                     '1 on x=0; 2 on x=1')

  @parameterized.parameters('jvp', 'vmap', 'checkpoint', 'jit')
  def test_transformed(self, how):
    @jax.custom_jvp
    def g(w):
      return w * 2
    g.defjvp(lambda p, t: (g(*p), tell_apart(t[0])))
    k = mapped(g, self.mesh, P())
    h = mapped(lambda w: g(tell_apart(w)), self.mesh, P())
    f, arg = {
        'jvp': (lambda w: jax.jvp(k, (w,), (w,)), jnp.ones(2)),
        'vmap': (lambda w: jax.vmap(h)(w), jnp.ones((3, 2))),
        'checkpoint': (mapped(jax.checkpoint(lambda w: tell_apart(w) * 2),
                              self.mesh, P()), jnp.ones(2)),
        'jit': (mapped(jax.jit(lambda w: tell_apart(w) * 2), self.mesh, P()),
                jnp.ones(2)),
    }[how]
    self.assertFound(self.said(f, arg), 'tell_apart(', '1 on x=0; 2 on x=1')

  def test_partly_manual(self):
    f = mapped(lambda w: tell_apart(w) * 2, self.mesh, P(),
               **partly_manual('y', of=XY))
    self.assertFound(self.said(f, jnp.zeros(4)), 'tell_apart(w)',
                     '4 of 4 elements differ, first [0]: 0 on x=0; 1 on x=1')

  def test_impure_callback(self):
    calls = itertools.count()
    def f(w):
      i = jax.pure_callback(lambda w: np.float32(next(calls)),
                            jax.ShapeDtypeStruct((), jnp.float32), w)
      return w + i
    said = self.said(mapped(f, self.mesh, P()), jnp.float32(1))
    self.assertRegex(said, r'`pure_callback` should be the same along .*\n.*'
                     r'pure_callback.*\n +\d on \w=0; \d on \w=1, where')
    self.assertIn('Its operands agree', said)

  def test_key_folded_by_device(self):
    calls = itertools.count()
    def f(key):
      n = jax.pure_callback(lambda: np.int32(next(calls)),
                            jax.ShapeDtypeStruct((), jnp.int32))
      return jax.random.normal(jax.random.fold_in(key, n))
    f = mapped(f, self.mesh, P())
    self.assertIn('`pure_callback`', self.said(f, jax.random.key(0)))
    said = self.said(f, jax.random.key(0), functions=['fold_in', 'normal'])
    self.assertRegex(said, 'result 0 of the shard_map')

  def test_says_what_it_cannot_compare(self):
    check = jax.debug.check_replication
    def f(w):
      i = io_callback(lambda w: w, jax.ShapeDtypeStruct((), jnp.float32), w)
      return i + w
    f = mapped(f, self.mesh, P(), P(), **UNCHECKED)
    with self.assertWarnsRegex(
        UserWarning, 'jax.debug.check_replication: not compared, as nothing '
        r'says along which axes it may differ: `io_callback` at .*_test\.py:'):
      self.assertEqual(check(f)(jnp.float32(1)), 2)

  @parameterized.parameters(*RIGHT)
  def test_right_program(self, name):
    check = jax.debug.check_replication
    f, args = RIGHT[name](self.mesh)
    want = jax.jit(f)(*args)
    got = check(f)(*args)
    self.assertEqual(jax.tree.structure(want), jax.tree.structure(got))
    for a, b in zip(jax.tree.leaves(want), jax.tree.leaves(got)):
      self.assertEqual((a.dtype, a.shape), (b.dtype, b.shape))
      self.assertAllClose(a, b, rtol=1e-5, atol=1e-5)

  def test_right_on_axes_of_one_device(self):
    check = jax.debug.check_replication
    for shape in ((1, 1), (1, 4)):
      mesh = Mesh(np.array(jax.devices()[:np.prod(shape)]).reshape(shape), XY)
      def f(a):
        i = lax.axis_index('x')
        a = tell_apart(a)  # there is one device along x
        return lax.psum(lax.cond(i == 0, lambda: a * 2, lambda: a), XY)
      f = mapped(f, mesh, P(*XY))
      self.assertAllClose(check(f)(rows()), jax.jit(f)(rows()))

  def test_neither_arguments_nor_results(self):
    # The gradient of one whose result depends on none of its arguments.
    check = jax.debug.check_replication
    for body in (lambda a, w: w, lambda a, w: w * 2):
      f = jax.checkpoint(mapped(body, self.mesh, (P(*XY), P()), P()))
      loss = lambda a, w, f=f: f(a, w).sum()
      for argnums in (0, 1, (0, 1)):
        g = jax.grad(loss, argnums)
        want = jax.jit(g)(rows(), jnp.ones(2))
        for run in (g, jax.jit(g)):
          self.assertAllClose(want, check(run)(rows(), jnp.ones(2)))

  def test_a_composite_in_one_branch_of_several(self):
    # Its own jaxpr says what its results vary along; other branches don't.
    check = jax.debug.check_replication
    def f(a, w):
      def swapped(u):
        return lax.composite(lambda p, q: (q * 2, p), 'f.op')(a, u)
      return lax.switch(jnp.sum(w).astype(int) % 3, [
          lambda u: (u, u), swapped, lambda u: (a, a)], w)
    f = mapped(f, self.mesh, (P(*XY), P()), (P(*XY), P(*XY)))
    for n in range(3):
      w = jnp.full((2, 2), n / 4.)
      for want, got in zip(jax.jit(f)(rows(), w), check(f)(rows(), w)):
        self.assertAllClose(want, got)

  @parameterized.parameters('itself', 'jit', 'cond', 'scan')
  def test_a_composite_that_asks_where_it_is(self, within):
    check = jax.debug.check_replication
    def rank(x):
      return x + lax.axis_index('x').astype(x.dtype)
    inner = {
        'itself': rank, 'jit': jax.jit(rank),
        'cond': lambda x: lax.cond(x > 0, jax.jit(rank), lambda x: x, x),
        'scan': lambda x: lax.scan(lambda c, _: (rank(c), None), x, None,
                                   length=1)[0]}[within]
    own = lax.composite(inner, 'f.rank')
    total = lax.composite(lambda x: lax.psum(inner(x), 'x'), 'f.total')
    f = mapped(lambda x: (own(x)[None], total(x)), self.mesh, P(),
               (P('x'), P()), **UNCHECKED)
    got, summed = check(f)(jnp.float32(2))
    self.assertAllClose(got, np.array([2., 3.], np.float32))
    self.assertEqual(summed, 5)
    f = mapped(lambda x: own(x), self.mesh, P(), P(), **UNCHECKED)
    self.assertIn('result 0 of the shard_map', self.said(f, jnp.float32(2)))

  def test_compiles_once_and_changes_no_other_program(self):
    check, traces = jax.debug.check_replication, []
    def f(w):
      traces.append(0)
      return w * lax.psum(2., XY)
    f = mapped(f, self.mesh, P())
    text = jax.jit(f).lower(jnp.ones(2)).as_text()
    traces.clear()
    g = check(f)
    with jtu.count_jit_compilation_cache_miss() if hasattr(
        jtu, 'count_jit_compilation_cache_miss') else warnings.catch_warnings():
      for n in range(3):
        self.assertAllClose(g(jnp.ones(2) * n), jnp.full(2, 8. * n))
    self.assertLessEqual(len(traces), 2)
    self.assertEqual(jax.jit(f).lower(jnp.ones(2)).as_text(), text)

  def test_keeps_names_and_keywords(self):
    check = jax.debug.check_replication
    def f(a, *, b):
      return {'s': a + b['c'], 'n': None}
    g = check(f)
    self.assertEqual(g.__name__, 'f')
    self.assertEqual(g(1., b={'c': 2.}), {'s': 3., 'n': None})
    self.assertIn('rtol', inspect.signature(check).parameters)

  @parameterized.parameters(((5,), {}), ((), {'times': 5}), ((), {}))
  def test_static_arguments_of_jit(self, args, kwargs):
    check = jax.debug.check_replication
    def f(a, times=5):
      return mapped(lambda a: sum(lax.psum(a, XY) for _ in range(times)),
                    self.mesh, P(*XY))(a)
    f = check(jax.jit(f, static_argnums=1))
    blocks = np.asarray(rows()).reshape(2, 2, 2, 2).sum((0, 2))
    self.assertAllClose(f(rows(), *args, **kwargs), 5 * blocks)
    self.assertAllClose(f(rows(), 2), 2 * blocks)
    def g(a, times=5):
      return mapped(lambda a: tell_apart(sum(a for _ in range(times))),
                    self.mesh, P())(a)
    with self.assertRaises(jax.debug.ReplicationError) as e:
      check(jax.jit(g, static_argnums=(1,)))(jnp.ones(()), *args, **kwargs)
    self.assertFound(str(e.exception), 'tell_apart(sum', '5 on x=0; 6 on x=1')

  def test_refused_where_it_cannot_run(self):
    check = jax.debug.check_replication
    f = check(lambda x: x * 2)
    for g in (jax.jit(f), jax.grad(f), jax.vmap(f), jax.make_jaxpr(f)):
      with self.assertRaisesRegex(TypeError, re.escape(
          'jax.debug.check_replication expected to be called outermost')):
        g(jnp.ones(1) if g is not jax.grad else 1.)
    with self.assertRaisesRegex(TypeError, 'expected a function, got 3'):
      check(3)
    for rtol in (-1e-6, float('nan')):
      with self.assertRaisesRegex(ValueError, 'rtol of at least 0'):
        check(f, rtol=rtol)

  @red(r"^ModuleNotFoundError: No module named 'jax\._src\.sanitizer'",
       api_missing=True)
  def test_doctests(self):
    from jax._src.sanitizer import replication
    run_docstrings(self, replication, 2)
