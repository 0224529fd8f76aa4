# SPDX-License-Identifier: Apache-2.0
"""Refs in shard_map that are written with what varies, without annotations."""
import functools
import os
import traceback

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.red import red
from testing.sharding import eight_devices

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types, but they')
UNLIKE_AXES = '^ValueError: .*varying manual axes'
PVARY_OF_VARYING_NAMED = ('^ValueError: pvary is a invariant->variant '
                          r'collective\. This means that the axis names '
                          'mentioned')
UNLIKE_REF = ("^ValueError: Primitive swap requires the value's varying "
              "manual axes to match the Ref's, and the")
REP_ERROR = (r"^_RepError: \[frozenset\(\{'x'\}\)\], raised by "
             r'shard_map\._check_vmas')
REP_ERROR_OF_TREE = r"^_RepError: \(\[frozenset\(\{'x'\}\)\], PyTreeDef"
REP_ERROR_OF_TYPES = ('^_RepError: '
                      r"\(\[ManualAxisType\(varying=frozenset\(\{'x'\}\), "
                      r'unreduced=frozenset\(\),')
PVARY_OF_VARYING_NAMED_BY_RELEASE = {
    '<0.12': PVARY_OF_VARYING_NAMED,
    '>=0.12': UNLIKE_REF,
}
MISMATCHED_AXES = {
    '<0.12':
        '^Exception: The branches of cond produced mismatched varying manual '
        r'axes\. Got',
    '>=0.12': UNLIKE_REF,
}


def make_mesh(kind):
  if kind == '1d':
    return Mesh(np.array(jax.devices()[:2]), ('x',))
  return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))


def sharded(f, kind, out_specs, in_specs=P('x')):
  return jax.shard_map(f, mesh=make_mesh(kind), in_specs=in_specs,
                       out_specs=out_specs)


def annotate(x):
  return lax.pcast(x, 'x', to='varying')


# Functions of a device's part of the input, of two elements, that make refs of
# replicated values by `new` and give an array of rank one.


def straight(x, new=jax.new_ref):
  ref = new(jnp.zeros(2))
  ref[...] = x
  return ref[...] * 2.


def added(x, new=jax.new_ref):
  ref = new(jnp.ones(2))
  ref[...] += x
  jax.ref.addupdate(ref, 0, x[1])
  return jax.ref.freeze(ref)


def written_where_it_varies(x, new=jax.new_ref):
  ref = new(jnp.arange(4.))
  ref[lax.axis_index('x')] = 7.
  return ref[...] + x[0]


def swapped(x, new=jax.new_ref):
  ref = new(jnp.zeros(2))
  old = jax.ref.swap(ref, slice(0, 1), x[1:])
  return jnp.append(old, ref[...])


def slices(x, new=jax.new_ref):
  ref = new(jnp.zeros((2, 3)))
  row = ref.at[1]
  row[1] = x[0]
  ref[0, 2] = x[1]
  return ref[...].reshape(-1) + row[...].sum()


def scanned(x, new=jax.new_ref):
  ref = new(jnp.zeros(()))
  def body(c, a):
    ref[...] += a * c
    return c + 1., ref[...]
  _, ys = lax.scan(body, 1., x)
  return jnp.append(ys, ref[...])


def by_carry(x, new=jax.new_ref):  # the carry varies after the first trip only
  ref = new(jnp.zeros(()))
  def body(i, c):
    ref[...] += c
    return c + x[0]
  lax.fori_loop(0, 3, body, 0.)
  return ref[...][None]


def reads_earlier(x, new=jax.new_ref):  # the carry varies as the ref does
  ref = new(jnp.zeros(()))
  def body(i, c):
    c = c + ref[...]
    ref[...] = x[1] * (i + 1)
    return c
  return lax.fori_loop(0, 3, body, 1.)[None]


def by_predicate(x, new=jax.new_ref):
  ref = new(jnp.zeros(()))
  def body(c):
    ref[...] += 1.
    return c + 1.
  lax.while_loop(lambda c: c < x[0], body, 0.)
  return ref[...][None]


def in_branch(x, new=jax.new_ref):
  ref = new(jnp.zeros(()))
  def write():
    ref[...] += 3.
  lax.cond(x[0] > 2., write, lambda: None)
  return ref[...][None]


def in_one_branch_of_several(x, new=jax.new_ref):
  ref, other = new(jnp.zeros(2)), new(jnp.ones(()))
  def first():
    ref[...] = x
    return 1.
  def second():
    other[...] += ref[0]
    return 2.
  n = lax.psum(1, 'x') - 2  # the same on all devices
  y = lax.switch(n, [first, second, lambda: 3.])
  return jnp.append(ref[...], other[...] + y)


def passed_to_jit(x, new=jax.new_ref):
  ref = new(jnp.zeros(2))
  @jax.jit
  def write(r, x):
    before = r[...]
    r[...] = x + before
    return before
  return write(ref, x) + ref[...] + write(ref, x)


def captured_by_jit(x, new=jax.new_ref):
  ref = new(jnp.ones(2))
  @jax.jit
  def outer(x):
    @jax.jit
    def inner(x):
      ref[...] *= x
    inner(x + 1.)
  outer(x)
  return ref[...]


def nested(x, new=jax.new_ref):
  ref = new(jnp.zeros(()))
  def outer(c, a):
    @jax.jit
    def step(d):
      lax.cond(a > 1., lambda: ref.set(d + a), lambda: None)
      return d * .5 + ref[...]
    return lax.fori_loop(0, 2, lambda i, d: step(d), c), None
  c, _ = lax.scan(outer, 0., x)
  return jnp.stack([c, ref[...]])


def made_in_loop(x, new=jax.new_ref):
  def body(c, a):
    ref, other = new(jnp.zeros(())), new(c)
    ref[...] += a
    other[...] *= 2.
    return ref[...] + c, jax.ref.freeze(other)
  c, ys = lax.scan(body, 1., x)
  return jnp.append(ys, c)


def adds_the_carry(x, new=jax.new_ref):  # which varies after the first trip
  def body(c, a):
    ref = new(jnp.ones(()))
    ref[...] += c
    return ref[...] * a, None
  return lax.scan(body, 1., x)[0][None]


def in_remat(x, new=jax.new_ref):
  def f(x):
    ref = new(jnp.zeros(2))
    ref[...] = x
    return jnp.sin(ref[...])
  return jax.checkpoint(f)(x)


def loop_over_refs(x, new=jax.new_ref):
  refs = {'a': new(jnp.zeros(2)), 'b': new(jnp.zeros(()))}
  for i in range(2):
    refs['a'][i] = x[i] * i
    refs['b'][...] += 1.
  return refs['a'][...] * refs['b'][...]


def vmapped(x, new=jax.new_ref):
  def f(a):
    ref = new(jnp.zeros(()))
    ref[...] = a * 2.
    return ref[...]
  return jax.vmap(f)(x)


PROGRAMS = {f.__name__: f for f in [
    straight, added, written_where_it_varies, swapped, slices, scanned,
    by_carry, reads_earlier, by_predicate, in_branch, in_one_branch_of_several,
    passed_to_jit, captured_by_jit, nested, made_in_loop, adds_the_carry,
    in_remat, loop_over_refs, vmapped]}
# Upstream accepted these, with a type that claimed too much.
RIGHT_BEFORE = {'by_predicate', 'in_branch'}


def device(f, i):
  """f on one device: what its two collectives give is known."""
  def on_device(*args):
    index, total = lax.axis_index, lax.psum
    lax.axis_index, lax.psum = lambda _: jnp.int32(i), lambda v, _: 2 * v
    try:
      return f(*args)
    finally:
      lax.axis_index, lax.psum = index, total
  return on_device


def emulated(f, x):
  """The results of two devices, each for its part, one after the other."""
  return jax.jit(lambda x: jnp.concatenate([
      device(f, i)(part) for i, part in enumerate(x.reshape(2, -1))]))(x)


def reads_in_divergent_branch(x, new=jax.new_ref):
  ref = new(jnp.ones(2) * 3.)
  return lax.cond(lax.axis_index('x') == 0, lambda: x * ref[...],
                  lambda: ref[...] * 2. + x)


def reads_where_it_varies(x, new=jax.new_ref):
  ref = new(jnp.arange(4.))
  return ref[lax.axis_index('x') + 1] * x


class ShardMapRefsTest(MeshTestCase):

  def setUp(self):
    super().setUp()
    self.x = jnp.array([1., 2., 3., 4.])

  def check_value(self, f, mesh):
    got = jax.jit(sharded(f, mesh, P('x')))(self.x)
    self.assertAllClose(got, emulated(f, self.x))

  @red({
      '<0.12': r'^AssertionError: \s*Not equal to tolerance',
      '>=0.12': UNLIKE_REF,
  })
  @parameterized.parameters(jax.jit, jax.checkpoint)
  def test_gradient_by_what_a_captured_ref_holds(self, wrap):
    # The second derivative isn't summed over devices, as the first one is.
    def f(w, x):
      ref = jax.new_ref(w)
      g = wrap(lambda x: jax.grad(lambda w: jnp.sum(w * x))(ref[...]))
      summed = g(x)
      ref[...] = x
      return summed, g(x)
    f = jax.shard_map(f, mesh=Mesh(np.array(jax.devices()[:4]), ('x',)),
                      in_specs=(P(), P('x')), out_specs=(P(), P('x')))
    x = np.arange(8, dtype=np.float32)
    summed, own = jax.jit(f)(np.float32([10, 20]), x)
    self.assertAllClose(summed, x.reshape(4, 2).sum(0))
    self.assertAllClose(own, x)

  @red({
      '<0.12': r"^AssertionError: 'psum' unexpectedly found in",
      '>=0.12': UNLIKE_REF,
  })
  def test_gradient_that_is_traced_ahead(self):
    texts = []
    def f(w, x):
      ref = jax.new_ref(w)
      g = jax.jit(lambda x: jax.grad(lambda w: jnp.sum(w * x))(ref[...]))
      texts.append(str(g.trace(x).jaxpr))
      ref[...] = x
      texts.append(str(g.trace(x).jaxpr))
      return x
    f = jax.shard_map(f, mesh=Mesh(np.array(jax.devices()[:4]), ('x',)),
                      in_specs=(P(), P('x')), out_specs=P('x'))
    jax.make_jaxpr(f)(self.x[:1], self.x)
    self.assertIn('psum', texts[0])
    self.assertNotIn('psum', texts[1])

  @red({
      '<0.12': '^JaxprTypeError: Call primitive jit passes operand',
      '>=0.12': UNLIKE_REF,
  }, cases=['swapped'])
  @red(MISMATCHED_AXES, cases=['in_one_branch_of_several', 'nested'])
  @red(SCAN_CARRY, cases=['by_carry', 'adds_the_carry'])
  @red(PVARY_OF_VARYING_NAMED_BY_RELEASE,
       cases=['added', 'slices', 'vmapped', 'written_where_it_varies',
              'captured_by_jit', 'in_remat'])
  @red(UNLIKE_AXES)
  @parameterized.parameters(*sorted(set(PROGRAMS) - RIGHT_BEFORE))
  def test_value(self, name):
    self.check_value(PROGRAMS[name], '2d')

  @red(MISMATCHED_AXES, cases=['nested'])
  @red(UNLIKE_AXES)
  @parameterized.parameters('straight', 'nested')
  def test_value_on_a_line_of_devices(self, name):
    self.check_value(PROGRAMS[name], '1d')

  @parameterized.parameters(*sorted(RIGHT_BEFORE))
  def test_guard_value(self, name):
    self.check_value(PROGRAMS[name], '2d')

  @red('^AssertionError: ValueError not raised')
  @parameterized.parameters(*sorted(RIGHT_BEFORE))
  def test_unsound(self, name):
    f = PROGRAMS[name]
    with self.assertRaisesRegex(ValueError, 'require replication'):
      jax.jit(sharded(lambda x: f(x)[0], '2d', P()))(self.x)

  @red('^AssertionError: "require replication" does not match "Primitive',
       cases=['straight'])
  @red({
      '<0.9.2': REP_ERROR,
      '>=0.9.2,<0.10': REP_ERROR_OF_TREE,
      '>=0.10,<0.12': REP_ERROR_OF_TYPES,
      '>=0.12':
          '^AssertionError: "require replication" does not match "Primitive '
          "swap requires the value's varying",
  }, cases=['captured_by_jit'])
  @red(SCAN_CARRY)
  @parameterized.parameters('straight', 'by_carry', 'captured_by_jit')
  def test_varying_content_is_not_replicated(self, name):
    f = PROGRAMS[name]
    with self.assertRaisesRegex(ValueError, 'require replication'):
      jax.jit(sharded(lambda x: f(x)[0], '2d', P()))(self.x)

  @red({
      '<0.9.2': r'^StoreException: Store empty, raised by linear_util\.val',
      '>=0.9.2,<0.12':
          "^ValueError: shard_map applied to the function 'vmapped' was given "
          'out_specs which require',
      '>=0.12': UNLIKE_REF,
  }, cases=['vmapped'])
  @red(UNLIKE_AXES)
  @parameterized.parameters('made_in_loop', 'vmapped')
  def test_eager(self, name):  # eager shard_map itself takes no refs
    f = jax.jit(PROGRAMS[name])
    self.assertAllClose(sharded(f, '2d', P('x'))(self.x),
                        emulated(f, self.x))

  @red(SCAN_CARRY, bases='>=0.9.2', cases=['by_carry', 'adds_the_carry'])
  @red({
      '<0.10':
          r'^ValueError: Input primal JAX type to VJP function is float32\[',
      '>=0.10,<0.12': r'^ValueError: Expected cotangent type float32\[',
      '>=0.12': UNLIKE_REF,
  }, bases='>=0.9.2')
  @parameterized.parameters(
      'straight', 'added', 'swapped', 'scanned', 'by_carry', 'reads_earlier',
      'in_one_branch_of_several', 'passed_to_jit',
      'captured_by_jit', 'made_in_loop', 'adds_the_carry', 'loop_over_refs',
      'vmapped')
  def test_gradient(self, name):
    if jax.__version_info__ < (0, 9, 2):
      self.skipTest('refs made of constants in a shard_map have no gradient')
    self.check_gradient(PROGRAMS[name], jax.grad)

  def test_guard_gradient(self):
    self.check_gradient(in_branch, jax.grad)

  @red(MISMATCHED_AXES, cases=['nested'])
  @red(SCAN_CARRY, cases=['by_carry'])
  @red(PVARY_OF_VARYING_NAMED_BY_RELEASE, cases=['captured_by_jit'])
  @red(UNLIKE_AXES)
  @parameterized.parameters('straight', 'scanned', 'by_carry',
                            'captured_by_jit', 'nested')
  def test_forward_gradient(self, name):
    def tangent(f):
      return lambda w: jax.jvp(f, (w,), (jnp.float32(1.),))[1]
    self.check_gradient(PROGRAMS[name], tangent)

  def check_gradient(self, f, derivative):
    g = lambda w, x: f(x * w)
    run = sharded(g, '2d', P('x'), (P(), P('x')))
    def oracle(w):
      return jnp.concatenate([device(g, i)(w, part) for i, part in
                              enumerate(self.x.reshape(2, -1))])
    loss = lambda f: lambda w: jnp.sum(jnp.sin(f(w)))
    outside = derivative(loss(lambda w: run(w, self.x)))
    staged = derivative(loss(lambda w: jax.jit(run)(w, self.x)))
    got = jax.jit(lambda w: (outside(w), staged(w)))(jnp.float32(.7))
    want = jax.jit(derivative(loss(oracle)))(jnp.float32(.7))
    self.assertAllClose(got, (want, want), rtol=1e-5)

  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: '
       r'array\(-3\.648\d*, dtype=float32\)', bases='>=0.9.2',
       cases=['reads_in_divergent_branch'])
  @red(PVARY_OF_VARYING_NAMED, cases=['reads_where_it_varies'])
  @parameterized.parameters(reads_in_divergent_branch, reads_where_it_varies)
  def test_gradient_of_what_is_read(self, f):
    # The ref's content is replicated; its cotangent is summed over devices.
    if f is reads_in_divergent_branch and jax.__version_info__ < (0, 9, 2):
      self.skipTest('refs in a branch in a shard_map have no gradient')
    def g(w, x):
      return f(x, new=lambda v: jax.new_ref(v * w))
    run = sharded(g, '2d', P('x'), (P(), P('x')))
    def oracle(w):
      want = []
      for i, x in enumerate(self.x.reshape(2, -1)):
        if f is reads_where_it_varies:
          want.append((i + 1) * w * x)
        else:
          want.append(x * 3. * w if i == 0 else 6. * w + x)
      return jnp.concatenate(want)
    loss = lambda f: lambda w: jnp.sum(jnp.sin(f(w)))
    self.assertAllClose(jax.jit(lambda w: run(w, self.x))(.7), oracle(.7))
    got = jax.jit(jax.grad(loss(lambda w: run(w, self.x))))(.7)
    self.assertAllClose(got, jax.grad(loss(oracle))(.7), rtol=1e-5)

  @red(PVARY_OF_VARYING_NAMED_BY_RELEASE)
  def test_content_read_before_is_replicated(self):
    def f(x):
      ref = jax.new_ref(jnp.float32(1.))
      ref[...] += 1.
      before = ref[...]
      ref[...] = x[0]
      return before, ref[...][None]
    before, after = jax.jit(sharded(f, '2d', (P(), P('x'))))(self.x)
    self.assertAllClose(before, jnp.float32(2.))
    self.assertAllClose(after, self.x[::2])

  def test_guard_precise(self):
    # What is the same on all devices stays so, whatever else varies.
    def f(x):
      count, total = jax.new_ref(jnp.int32(0)), jax.new_ref(jnp.zeros(()))
      def body(c, a):
        count[...] += 1
        total[...] += lax.psum(a, 'x')
        return c, None
      lax.scan(body, 0., x)
      return count[...], total[...], count[...] + 1
    got = jax.jit(sharded(f, '2d', P()))(self.x)
    self.assertAllClose(got, (jnp.int32(2), jnp.float32(10.), jnp.int32(3)))

  @red(SCAN_CARRY, cases=['by_carry', 'nested'])
  @red(UNLIKE_AXES)
  @parameterized.parameters(
      'straight', 'by_carry', 'nested')
  def test_annotated_program_is_the_same(self, name):
    f, texts = PROGRAMS[name], []
    for new in (lambda v: jax.new_ref(annotate(v)), jax.new_ref):
      run = functools.wraps(f)(functools.partial(f, new=new))
      texts.append(jax.jit(sharded(run, '2d', P('x'))).lower(self.x)
                   .compile().as_text())
    strip = lambda t: [line.split('metadata=')[0] for line in t.splitlines()
                       if 'Location' not in line and 'file' not in line]
    self.assertEqual(*map(strip, texts))

  @red({
      '<0.12': PVARY_OF_VARYING_NAMED,
      '>=0.12':
          "^ValueError: Primitive addupdate requires the value's varying "
          "manual axes to match the Ref's, and",
  })
  @parameterized.parameters(False, True)
  def test_what_is_added_to_a_ref_of_a_body(self, jit):
    def f(x):
      def body(c, _):
        ref = jax.new_ref(jnp.zeros(2))
        jax.ref.addupdate(ref, ..., c)
        return ref[...] + x, None
      return lax.scan(body, annotate(jnp.zeros(2)), None, length=3)[0]
    run = sharded(f, '1d', P('x'))
    self.assertAllClose((jax.jit(run) if jit else run)(self.x), 3 * self.x)

  @red(UNLIKE_AXES)
  @parameterized.parameters(1, 8)
  def test_innermost_body_is_traced_once(self, depth):
    calls = []
    def f(x):
      ref = jax.new_ref(jnp.zeros(()))
      def level(n, c):
        if n == depth:
          calls.append(n)
          ref[...] += c + x[0]
          return c * .5 + ref[...]
        return lax.fori_loop(0, 1, lambda i, d: level(n + 1, d), c)
      return level(0, 0.)[None]
    got = jax.jit(sharded(f, '1d', P('x')))(self.x)
    self.assertLen(calls, 1)
    self.assertAllClose(got, self.x[::2])

  @red({
      '<0.9.2': REP_ERROR,
      '>=0.9.2,<0.10': REP_ERROR_OF_TREE,
      '>=0.10,<0.12': REP_ERROR_OF_TYPES,
      '>=0.12': UNLIKE_REF,
  })
  def test_refuses_a_ref_from_outside(self):
    # Its in_spec says that its content is the same on all devices.
    def write(ref, x):
      ref[...] = x
    @jax.jit
    def f(x):
      ref = jax.new_ref(jnp.zeros(2))
      sharded(write, '2d', None, (P(), P('x')))(ref, x)
      return ref[...]
    with self.assertRaisesRegex(TypeError, 'made outside of shard_map'):
      f(self.x)

  def test_guard_a_ref_from_outside(self):
    def write(ref, x):
      ref[...] = x * 2.
    @jax.jit
    def f(x):
      ref = jax.new_ref(jnp.zeros(4))
      sharded(write, '2d', None, (P('x'), P('x')))(ref, x)
      return ref[...]
    self.assertAllClose(f(self.x), self.x * 2.)

  def test_option_restores_the_refusal(self):
    f = jax.jit(sharded(by_carry, '2d', P('x')))
    if hasattr(jax.config, 'jax_shard_map_promote_carries'):
      jax.config.update('jax_shard_map_promote_carries', False)
      self.addCleanup(jax.config.update, 'jax_shard_map_promote_carries', True)
    with self.assertRaises(TypeError):
      f(self.x)

  def test_check_off(self):
    for f in (straight, by_carry, by_predicate, nested):
      run = jax.shard_map(f, mesh=make_mesh('2d'), in_specs=P('x'),
                          out_specs=P('x'), check_vma=False)
      self.assertAllClose(jax.jit(run)(self.x), emulated(f, self.x))

  def test_adds_no_frame_to_a_jitted_function(self):
    # Upstream's TracebackTest counts them; jitted functions are nested deep.
    files = []

    def look(x):
      files.extend(f.filename for f in traceback.extract_stack())
      return x + 1.
    for call in (jax.jit(look), jax.jit(jax.jit(look)),
                 lambda x: jax.jit(look).lower(x)):
      call(1.)
    self.assertContainsSubset(['pjit.py'], map(os.path.basename, files))
    ours = os.path.join('_src', 'varying', '')
    self.assertEmpty([f for f in files if ours in f])
