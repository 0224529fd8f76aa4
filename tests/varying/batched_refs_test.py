# SPDX-License-Identifier: Apache-2.0
"""jax.vmap over refs along any of their axes, against NumPy."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import core
from jax._src import test_util as jtu
from jax._src.state.primitives import ref_addupdate
import jax.numpy as jnp
import numpy as np
from testing.red import red

config.parse_flags_with_absl()

# What pristine JAX says.
REF_REFUSED = '^AssertionError: vmap over a ref is refused: '
WRONG_VALUES = r'^AssertionError: \s*Not equal to tolerance'
REFUSED_BY_ASSERTION = ('^AssertionError: vmap over a ref is refused: '
                        r'AssertionError: \(\(')

new_ref = (getattr(core, 'new_ref', None) or getattr(core, 'array_ref', None)
           or core.mutable_array)

# Each takes a ref, or NumPy's array of its content, and numbers; the second is
# NumPy's of the first.


def scanned(ref, xs):
  def body(c, x):
    ref[...] += x
    return c + ref[...].sum(), ref[...][0]
  return lax.scan(body, 0., xs)


def np_scanned(ref, xs):
  c, ys = 0., []
  for x in xs:
    ref[...] += x
    c += ref.sum()
    ys.append(ref[0])
  return c, np.array(ys)


def nested(ref, xs):
  def body(c, x):
    def inner(d, y):
      ref[...] += x * y
      return d + ref[...][1], None
    return lax.scan(inner, c, xs)[0], None
  return lax.scan(body, 0., xs)[0]


def np_nested(ref, xs):
  c = 0.
  for x in xs:
    for y in xs:
      ref[...] += x * y
      c += ref[1]
  return c


def counted(ref, xs):
  def body(i, c):
    ref[...] = .5 * ref[...] + xs[i]
    return .5 * c + ref[...][1]
  return lax.fori_loop(0, xs.shape[0], body, 0.)


def np_counted(ref, xs):
  c = 0.
  for x in xs:
    ref[...] = .5 * ref + x
    c = .5 * c + ref[1]
  return c


def jitted(ref, xs):
  return jax.jit(scanned)(ref, xs)


def checkpointed(ref, xs):
  return jax.checkpoint(scanned)(ref, xs)


def over_the_ref(ref, xs):  # each step has the sum of a row
  return lax.scan(lambda c, row: (.5 * c + row[...].sum(), None), xs[0],
                  ref)[0]


def np_over_the_ref(ref, xs):
  c = xs[0]
  for row in ref:
    c = .5 * c + row.sum()
  return c


def until(ref, xs):  # a batched predicate
  def body(c):
    ref[...] += xs[0]
    return c + ref[...][0]
  return lax.while_loop(lambda c: c < 20., body, ref[...][0])


def np_until(ref, xs):
  c = ref[0]
  while c < 20.:
    ref[...] += xs[0]
    c += ref[0]
  return c


def times(ref, xs):  # a predicate that isn't
  def body(s):
    i, c = s
    ref[...] = .5 * ref[...] + xs[i]
    return i + 1, c + ref[...][0]
  return lax.while_loop(lambda s: s[0] < 3, body, (0, 0.))[1]


def np_times(ref, xs):
  c = 0.
  for x in xs[:3]:
    ref[...] = .5 * ref + x
    c += ref[0]
  return c


LOOPS = dict(scanned=(scanned, np_scanned), nested=(nested, np_nested),
             counted=(counted, np_counted), jitted=(jitted, np_scanned),
             until=(until, np_until), times=(times, np_times))
DIFFERENTIABLE = jax.__version_info__ >= (0, 7)  # and jax.checkpoint takes refs
if DIFFERENTIABLE:
  LOOPS['checkpointed'] = checkpointed, np_scanned

# The shape of an example's content, and its index by a number and an array.
INDICES = {
    'number': ([2], lambda i, a: 0),
    'slice': ([2], lambda i, a: slice(0, 1)),
    'scalar': ([2], lambda i, a: i),
    'array': ([2], lambda i, a: a),
    'row': ([2, 3], lambda i, a: (i, slice(None))),
    'column': ([2, 3], lambda i, a: (slice(None), i)),
    'parted': ([2, 3, 3], lambda i, a: (a, slice(None), a)),
    'neighbours': ([2, 3, 3], lambda i, a: (slice(1, 2), a, a)),
}
if jax.__version_info__ < (0, 6):  # what arrays index is always in front
  INDICES.pop('neighbours')
elif jax.__version_info__ < (0, 7, 2):  # a number of Python's is refused
  INDICES.pop('number')


class BatchedRefsTest(jtu.JaxTestCase):

  def assert_as_numpy(self, f, expected, shape, axis):
    """Holds a function of a ref, under vmap, against NumPy, eager and jit."""
    start = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    xs = np.array([1., 2., 4., 3.], np.float32)
    content = start.copy()
    wanted = [expected(part, xs) for part in np.moveaxis(content, axis, 0)]
    wanted = jax.tree.map(lambda *parts: np.stack(parts), *wanted)

    def run(start):
      ref = new_ref(start)
      return jax.vmap(f, in_axes=(axis, None))(ref, jnp.asarray(xs)), ref[...]

    self.assert_gives(run, start, (wanted, content))

  def assert_gives(self, f, x, wanted):
    """Compares what a function gives, jit and eager, which may be refused."""
    for run in (jax.jit(f), f):
      try:
        got = run(jnp.asarray(x))
      except Exception as e:  # an AttributeError is no reason by itself
        raise AssertionError(
            f'vmap over a ref is refused: {type(e).__name__}: {e}') from e
      self.assertAllClose(got, wanted, rtol=1e-5)

  @red(REF_REFUSED, bases='<0.12',
       cases=['scanned', 'nested', 'counted', 'jitted'])
  @red(REF_REFUSED, bases='>=0.7,<0.12', cases=['checkpointed'])
  @red(REFUSED_BY_ASSERTION, cases=['until'])
  @parameterized.parameters(*LOOPS)
  def test_loop(self, loop):
    self.assert_as_numpy(*LOOPS[loop], (2, 3), 1)

  @red(REF_REFUSED, bases='<0.12', cases=['scanned'])
  @red(REFUSED_BY_ASSERTION, cases={'loop': 'until', 'shape': (2, 1)})
  @red(WRONG_VALUES, cases=['until'])
  @parameterized.product(loop=('scanned', 'until'), shape=((3, 3), (2, 1)))
  def test_loop_where_sizes_fit(self, loop, shape):
    self.assert_as_numpy(*LOOPS[loop], shape, 1)

  @parameterized.parameters(*LOOPS)
  def test_loop_with_the_batch_in_front(self, loop):
    self.assert_as_numpy(*LOOPS[loop], (3, 3), 0)

  @red(REF_REFUSED, bases='<0.12')
  def test_loop_over_a_ref(self):
    self.assert_as_numpy(over_the_ref, np_over_the_ref, (3, 2, 3), 2)

  @red(REF_REFUSED, bases='<0.12')
  def test_loop_over_a_ref_along_its_batch(self):
    def run():
      self.assert_as_numpy(over_the_ref, np_over_the_ref, (3, 2, 3), 0)
    if jax.__version_info__ < (0, 12):
      run()
    else:  # refused by name
      self.assertRaisesRegex(
          AssertionError, 'refused: NotImplementedError: .* leading axis', run)

  def test_loop_over_a_ref_along_its_second_axis(self):
    self.assert_as_numpy(over_the_ref, np_over_the_ref, (3, 2, 3), 1)

  # A ref whose batch axis is moved: 'AbstractRef' object has no attribute
  # 'transpose', Permutation ..., TransformedRefs ..., __jax_array__ ...
  @red(REF_REFUSED, bases='<0.12', cases=['scanned'])
  @red(WRONG_VALUES, cases=['until'])
  @parameterized.parameters('scanned', 'until')
  def test_batch_of_a_batch(self, loop):
    f, expected = LOOPS[loop]
    def outer(ref, xs):
      return jax.vmap(f, in_axes=(1, None))(ref, xs)
    def np_outer(ref, xs):
      parts = [expected(part, xs) for part in np.moveaxis(ref, 1, 0)]
      return jax.tree.map(lambda *x: np.stack(x), *parts)
    self.assert_as_numpy(outer, np_outer, (3, 3, 3), 2)

  @red(WRONG_VALUES)
  def test_predicate_of_the_inner_batch(self):
    def f(ref, xs):
      def one(part, x):
        def body(c):
          part[...] += 1.
          return c + x
        return lax.while_loop(lambda c: c < 5., body, 0.)
      return jax.vmap(one, in_axes=(0, 0))(ref, xs)
    def expected(ref, xs):
      trips = np.ceil(5. / xs)
      ref[...] += trips
      return (trips * xs).astype(np.float32)
    self.assert_as_numpy(f, expected, (4, 4), 0)

  @red(r'^AssertionError: \(\(4,\), ShapedArray\(float32\[3\]\)\)')
  def test_ref_that_is_only_read_in_front_of_a_batched_predicate(self):
    ref = new_ref(jnp.arange(3.))
    def f(x):
      return lax.while_loop(lambda c: c < 9., lambda c: c + ref[...].sum(), x)
    self.assertAllClose(jax.vmap(f)(jnp.arange(4.)),
                        np.array([9., 10., 11., 9.], np.float32))
    self.assertAllClose(ref[...], np.arange(3., dtype=np.float32))

  @red('^AssertionError: ValueError not raised', bases='<0.8')
  def test_refuses_a_ref_of_all_examples(self):
    def f(x):
      def body(c):
        ref[...] += 1.
        return c + 1.
      return lax.while_loop(lambda c: c < 9., body, x)
    ref = new_ref(jnp.arange(3.))
    # Since 0.8 JAX itself refuses it.
    kind = ValueError if jax.__version_info__ < (0, 8) else Exception
    with self.assertRaisesRegex(kind, 'as an argument|to be an argument'):
      jax.vmap(f)(jnp.arange(3.))
    self.assertAllClose(ref[...], np.arange(3., dtype=np.float32))

  if DIFFERENTIABLE:
    @red(REF_REFUSED, bases='>=0.7,<0.12')
    @parameterized.parameters('scanned', 'counted')
    def test_gradient(self, loop):
      f, _ = LOOPS[loop]
      def value(axis, start):
        ref = new_ref(start)
        out = jax.vmap(f, in_axes=(axis, None))(ref, jnp.array([1., 2.]))
        return jnp.sum(ref[...] ** 2) + sum(
            jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(out))
      start = jnp.arange(6.).reshape(2, 3) / 7
      in_front = jax.jit(jax.grad(lambda x: value(0, x)))(start.T)
      self.assert_gives(jax.grad(lambda x: value(1, x)), start, in_front.T)

  @red(r'^AssertionError: Tuples differ: \(', bases='>=0.8,<0.8.2',
       cases={'index': ['scalar', 'row', 'column'], 'batched': True})
  @red(REF_REFUSED, bases='>=0.8,<0.8.2',
       cases=[{'index': ['number', 'scalar', 'row', 'column']},
              {'index': 'slice', 'axis': -1}])
  @red(WRONG_VALUES, bases='>=0.8.2,<0.10.1',
       cases={'index': 'row', 'batched': False})
  @red('^AssertionError: vmap over a ref is refused: ValueError: ',
       bases='>=0.8.2,<0.10.1',
       cases=[{'axis': 0, 'index': ['number', 'row', 'column', 'scalar']},
              {'axis': -1, 'index': ['scalar', 'row', 'column'],
              'batched': True}])
  @parameterized.product(index=list(INDICES), axis=(0, -1),
                         batched=(False, True))
  def test_index(self, index, axis, batched):
    shape, at_index = INDICES[index]
    axis = axis % (len(shape) + 1)
    shape = [*shape[:axis], 3, *shape[axis:]]
    start = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    i, a = np.int32(1), np.array([1, 0], np.int32)
    if batched:
      i = np.array([0, 1, 1], np.int32)
      a = np.array([[0, 1], [1, 0], [1, 0]], np.int32)
    content, was = start.copy(), []
    for n, part in enumerate(np.moveaxis(content, axis, 0)):
      at = at_index(*((i[n], a[n]) if batched else (i, a)))
      was.append(np.array(part[at]))
      part[at] = 2. * part[at] + n

    def run(start):
      def one(ref, i, a, n):
        at = at_index(i, a)
        old = ref[at]
        ref[at] = 2. * old - n
        ref_addupdate(ref, at, jnp.broadcast_to(2. * n, jnp.shape(old)))
        return old
      ref = new_ref(start)
      axes = (axis, *(2 * (0 if batched else None,)), 0)
      return jax.vmap(one, in_axes=axes)(ref, i, a, jnp.arange(3.)), ref[...]

    self.assert_gives(run, start, (np.stack(was), content))

  @red(WRONG_VALUES, bases='>=0.8,<0.11.1', cases=[(3, 3)])
  @red('^AssertionError: vmap over a ref is refused: ValueError: Invalid '
       'shape for', bases='>=0.8,<0.11.1')
  @parameterized.parameters((3, 3), (2, 3), (2, 1))
  def test_whole_value(self, *shape):
    def f(ref, xs):
      old = ref[...]
      ref[...] = 2. * old + jnp.arange(float(old.shape[0]))
      ref_addupdate(ref, ..., 2. * old + jnp.arange(float(old.shape[0])))
      return old
    def expected(ref, xs):
      old = ref.copy()
      ref[...] = 4. * ref + 2. * np.arange(ref.shape[0], dtype=np.float32)
      return old
    self.assert_as_numpy(f, expected, shape, 1)

  def test_what_is_added_may_be_batched_along_another_axis(self):
    start = np.arange(9, dtype=np.float32).reshape(3, 3)
    def run(x):
      ref = new_ref(x)
      jax.vmap(lambda ref, x: ref_addupdate(ref, ..., x), (1, 0))(ref, x * x)
      return ref[...]
    self.assert_gives(run, start, start + (start * start).T)

  def test_of_an_array_in_front_as_without(self):
    def f(ref, xs):
      def body(c, x):
        ref[...] += x
        return c, None
      return lax.scan(body, 0., xs)[0]
    def run(x, xs):
      ref = new_ref(x)
      return jax.vmap(f, in_axes=(0, None))(ref, xs), ref[...]
    text = str(jax.make_jaxpr(run)(jnp.ones((3, 2)), jnp.ones(4)))
    self.assertLen([line for line in text.splitlines() if 'scan[' in line], 1)
    self.assertNotIn(' transpose[', text)
