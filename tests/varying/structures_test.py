# SPDX-License-Identifier: Apache-2.0
"""Equality, hash and type of jax.ShapeDtypeStruct inside shard_map.

That JAX's caches don't take one structure for another is seen by values: the
transpose of `w * x` sums over devices if `w` is the same on all of them.
"""
import dataclasses
import functools

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import MESHES
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_MANUAL_TYPE = r'^AssertionError: ManualAxisType\(varying=frozenset\(\{'
NO_VMA = {
    '<0.10':
        r"^AssertionError: frozenset\(\{'.'(, '.')?\}\), raised by "
        r'core\.get_vma',
    '>=0.10': OTHER_MANUAL_TYPE,
}

X = np.random.RandomState(0).uniform(.5, 2., 4).astype(np.float32)
WHERE = [('1d', True), ('1d', False), ('2d', True)]


def structure(x):
  return jax.eval_shape(lambda x: x * 2, x)


def collect(f, where, check=True):
  """The notes and results of `f`, of a device's element and of a shared one."""
  kind, jit = where
  mesh = make_mesh(*MESHES[kind])
  g = shard_map(f, mesh=mesh, in_specs=(P(mesh.axis_names), P()),
                out_specs=P(mesh.axis_names), check_vma=check)
  return maybe_jit(jit)(g)(X, np.float32([2.]))


# What a structure's type of manual axes is called: `vma` up to 0.9.2.
FIELD = ('manual_axis_type'
         if hasattr(jax.ShapeDtypeStruct, 'manual_axis_type')
         or hasattr(jax.ShapeDtypeStruct((), 'f'), 'manual_axis_type')
         else 'vma')


def said(x):
  """What the type of a value says of manual axes."""
  t = jax.typeof(x)
  return t.mat if hasattr(t, 'mat') else t.vma


def axes_of(x):
  return getattr(said(x), 'varying', said(x))


def transposed(s, x):
  """The cotangent of w, of type `s`, in `w * x`: summed if `s` is the same."""
  ct, = jax.linear_transpose(lambda w: w * x, s)(x)
  return cast(ct, {'x'} - axes_of(ct))


@dataclasses.dataclass(frozen=True)
class Like:
  """Holds a structure, and compares as dataclasses do."""
  structure: jax.ShapeDtypeStruct


class Helped:
  """Holds a structure, and compares by a function of its own."""

  def __init__(self, s):
    self.structure = s

  def __hash__(self):
    return hash(self.structure)

  def __eq__(self, other):
    return _same(self, other)


def _same(a, b):
  return type(a) is type(b) and all(x == y for x, y in [(a.structure,
                                                         b.structure)])


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Typed:
  """An array, and the structure of something as auxiliary data."""
  value: jax.Array
  structure: jax.ShapeDtypeStruct

  def tree_flatten(self):
    return (self.value,), self.structure

  @classmethod
  def tree_unflatten(cls, aux, children):
    return cls(children[0], aux)


def _step(carry, _):
  return Typed(transposed(carry.structure, carry.value),
               carry.structure), None


def _scan(s, x):
  return lax.scan(_step, Typed(x, s), None, length=1)[0].value


def _while(s, x):
  return lax.while_loop(_small, _grow, (Typed(x, s), 0))[0].value


def _small(carry):
  return carry[1] < 1


def _grow(carry):
  return _step(carry[0], None)[0], carry[1] + 1


def _cond(s, x):
  return lax.cond(lax.axis_size('x') > 0, _branch, _branch, Typed(x, s))


def _branch(t):
  return transposed(t.structure, t.value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _custom(s, x):
  return transposed(s, x)


_custom.defvjp(lambda s, x: (transposed(s, x), x), lambda s, x, ct: (ct,))


@jax.custom_vjp
def _custom_tree(t):
  return _branch(t)


_custom_tree.defvjp(lambda t: (_branch(t), t), lambda t, ct: (t,))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _custom_forward(s, x):
  return transposed(s, x)


@_custom_forward.defjvp
def _(s, primals, tangents):
  return transposed(s, *primals), tangents[0]


def _equalities(a, b) -> list[bool]:
  """True if the two are equal, in each way to ask; their hashes come last."""
  trees = [jax.tree.structure(Typed(0, s)) for s in (a, b)]
  return [a == b, b == a, not a != b, [a, 1] == [b, 1], Like(a) == Like(b),
          Helped(a) == Helped(b), trees[0] == trees[1], hash(a) == hash(b)]


CACHES = {
    'jit_static': jax.jit(transposed, static_argnums=0),
    'jit_static_name': lambda s, x, f=jax.jit(
        transposed, static_argnames='s'): f(s=s, x=x),
    'jit_dataclass': lambda s, x, f=jax.jit(
        lambda d, x: transposed(d.structure, x), static_argnums=0):
        f(Like(s), x),
    'jit_helped': lambda s, x, f=jax.jit(
        lambda d, x: transposed(d.structure, x), static_argnums=0):
        f(Helped(s), x),
    'jit_tuple': lambda s, x, f=jax.jit(
        lambda d, x: transposed(d[1][0], x), static_argnums=0):
        f((1, (s,)), x),
    'jit_tree': lambda s, x, f=jax.jit(_branch): f(Typed(x, s)),
    'jit_jit': lambda s, x, f=jax.jit(jax.jit(_branch)): f(Typed(x, s)),
    'jit_grad': lambda s, x, f=jax.jit(
        lambda s, x: jax.vjp(lambda x: transposed(s, x) * 1., x)[0],
        static_argnums=0): f(s, x),
    'custom_vjp': _custom,
    'custom_vjp_jit': lambda s, x, f=jax.jit(_custom_tree): f(Typed(x, s)),
    'custom_vjp_grad': lambda s, x: jax.vjp(
        functools.partial(_custom, s), x)[0],
    'custom_jvp': _custom_forward,
    'remat_static': jax.checkpoint(transposed, static_argnums=0),
    'remat_tree': lambda s, x, f=jax.checkpoint(_branch): f(Typed(x, s)),
    'remat_grad': lambda s, x, f=jax.checkpoint(_branch):
        jax.vjp(lambda x: f(Typed(x, s)), x)[0],
    'scan': _scan,
    'while': _while,
    'cond': _cond,
    'closure_convert': lambda s, x: jax.closure_convert(
        _branch, Typed(x, s))[0](Typed(x, s)),
}


def _in_dict(key):
  made = {}
  def f(s, x):
    if key(s) not in made:
      made[key(s)] = lambda x: transposed(s, x)
    return made[key(s)](x)
  return f


def _with_get(s, x, made):
  if (f := made.get(s)) is None:
    f = made[s] = lambda x: transposed(s, x)
  return f(x)


def _with_setdefault(s, x, made):
  return made.setdefault(s, lambda x: transposed(s, x))(x)


def _in_set(s, x, made):
  same = made.setdefault(None, {}).setdefault(frozenset([s]), s)
  return transposed(same, x)


def _in_list(s, x, made):
  for known, f in made:
    if known == s:
      return f(x)
  made.append((s, lambda x: transposed(s, x)))
  return made[-1][1](x)


def _by_index(s, x, made):
  if s not in made:
    made.append(s)
  return transposed(made[made.index(s)], x)


def _with_lru_cache(key):
  made = functools.lru_cache(lambda k: lambda x: transposed(_inside(k), x))
  return lambda s, x: made(key(s))(x)


def _inside(k):
  k = k[1] if type(k) is tuple else k
  return getattr(k, 'structure', k)


# What a program of its own keeps by structures, anew for each trace.
OWN_CACHES = {
    'dict': lambda: _in_dict(lambda s: s),
    'dict_tuple': lambda: _in_dict(lambda s: (1, (s, 'w'))),
    'dict_dataclass': lambda: _in_dict(Like),
    'dict_helped': lambda: _in_dict(Helped),
    'dict_treedef': lambda: _in_dict(
        lambda s: jax.tree.structure(Typed(0, s))),
    'get': lambda: functools.partial(_with_get, made={}),
    'setdefault': lambda: functools.partial(_with_setdefault, made={}),
    'frozenset': lambda: functools.partial(_in_set, made={}),
    'list': lambda: functools.partial(_in_list, made=[]),
    'list_index': lambda: functools.partial(_by_index, made=[]),
    'lru_cache': lambda: _with_lru_cache(lambda s: s),
    'lru_cache_tuple': lambda: _with_lru_cache(lambda s: (1, s)),
    'lru_cache_dataclass': lambda: _with_lru_cache(Like),
    'lru_cache_helped': lambda: _with_lru_cache(Helped),
}


class StructuresTest(jtu.JaxTestCase):

  @red(r'^AssertionError: Lists differ: \[False, False, False, False, False, '
       r'False,\[65 chars\]alse\] != \[True,')
  @parameterized.product(where=WHERE, check=[True, False])
  def test_equal_to_what_is_written_down(self, where, check):
    seen = []
    def f(x, w):
      plain = jax.ShapeDtypeStruct(x.shape, x.dtype)
      for y in (w, w * 2) if check else (x, x + w):
        seen.extend(_equalities(structure(y), plain))
      return x
    collect(f, where, check)
    self.assertEqual(seen, [True] * 16)

  @red({
      '<0.10.2': '^ValueError: Mismatch custom node data: ShapeDtypeStruct',
      '>=0.10.2':
          '^ValueError: pytree structure error: different pytree metadata at '
          r'key path\s+tree_map tree\s+At',
  })
  @parameterized.product(where=WHERE)
  def test_equal_without_the_axes(self, where):
    # As lineax and equinox do: they keep the sharding, and drop the rest.
    seen = []
    def f(x, w):
      plain = jax.ShapeDtypeStruct(x.shape, x.dtype)
      for y in (x, w):
        s = structure(y)
        s = jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=s.sharding)
        seen.extend(_equalities(s, plain))
      both = jax.tree.map(lambda x, y: x + y, Typed(x, s), Typed(x, plain))
      return both.value / 2
    np.testing.assert_allclose(collect(f, where), X)
    self.assertEqual(seen, [True] * 16)

  @parameterized.product(where=WHERE)
  def test_told_apart_by_what_varies(self, where):
    def f(x, w):
      a, b = structure(x), structure(w)
      plain = jax.ShapeDtypeStruct(x.shape, x.dtype)
      for other in (b, plain):
        for p, q in ((a, other), (other, a)):
          self.assertFalse(any(_equalities(p, q)[:-1]))
          self.assertNotIn(p, [q])
          self.assertNotIn(p, {q: None})
          self.assertEqual([p, q].index(q), 1)
          self.assertLen({p, q}, 2)
        with self.assertRaisesRegex(ValueError, 'pytree|custom node data'):
          jax.tree.map(lambda x, y: x + y, Typed(x, a), Typed(x, other))
      return x
    collect(f, where)

  @red(NO_VMA, cases={'check': True})
  @parameterized.product(where=WHERE, check=[True, False])
  def test_is_an_equivalence_and_goes_with_the_hash(self, where, check):
    def f(x, w):
      mesh = jax.sharding.get_abstract_mesh()
      placed = lambda kind: jax.sharding.NamedSharding(mesh, P(),
                                                       memory_kind=kind)
      pool = [structure(y) for y in (x, w, x + w, w * 2)]
      pool += [jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=s.sharding)
               for s in pool]
      pool += [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s,
                                    **{FIELD: m})
               for s in (None, placed(None), placed('pinned_host'))
               for m in (None, said(x), said(w))]
      equal = [[a == b for b in pool] for a in pool]
      self.assertEqual(equal, [list(column) for column in zip(*equal)])
      for a, row in zip(pool, equal):
        for b, others in zip(pool, equal):
          self.assertEqual(a == b, row == others)
          self.assertEqual(a == b, not a != b)
          self.assertTrue(a != b or hash(a) == hash(b))
          if a == b:
            self.assertEqual(said(a), said(b))
            self.assertEqual(jax.typeof(a).memory_space,
                             jax.typeof(b).memory_space)
      return x
    collect(f, where, check)

  @parameterized.product(where=[('1d', True), ('1d', False)])
  def test_a_carry_whose_structure_comes_to_vary(self, where):
    # Its body was traced for a structure that doesn't, so stock JAX refuses it.
    def f(x, w):
      step = lambda t, _: (Typed(t.value + x, structure(t.value + x)), None)
      return lax.scan(step, Typed(w, structure(w)), None, length=2)[0].value
    with self.assertRaisesRegex(TypeError, 'must have the same pytree'):
      collect(f, where)

  def test_one_dictionary_in_many_places(self):
    # What was made for a type in one mesh isn't for another one, nor outside.
    known = {}
    def transpose_of(s):
      return jax.linear_transpose(lambda v: 3. * v, known.setdefault(s, s))
    def f(x, w):
      for y in (x, w):
        ct, = transpose_of(structure(y))(y)
        x = x + cast(ct, axes_of(x) - axes_of(ct))
      return x
    plain = jax.ShapeDtypeStruct((1,), np.float32)
    ct = np.float32([2.])
    for where in (*WHERE, ('1d', True)):
      np.testing.assert_allclose(collect(f, where), 4 * X + 6., rtol=1e-6)
      np.testing.assert_allclose(transpose_of(plain)(ct)[0], 3. * ct)
    self.assertLen([s for s in known if s == plain], 1)

  @parameterized.product(cache=list(CACHES),
                         first=['same', 'varying', 'written'],
                         where=[('1d', True), ('1d', False)])
  def test_caches_tell_types_apart(self, cache, first, where):
    f = CACHES[cache]
    def g(x, w):
      varying, same = structure(x), structure(w)
      plain = jax.ShapeDtypeStruct(w.shape, w.dtype)
      orders = dict(same=(same, varying, plain), varying=(varying, same, plain),
                    written=(plain, varying, same))
      for s in orders[first]:
        f(s, x)
      return jnp.stack([f(varying, x), f(same, x), f(plain, x)])
    kind, jit = where
    mesh = make_mesh(*MESHES[kind])
    h = shard_map(g, mesh=mesh, in_specs=(P('x'), P()), out_specs=P(None, 'x'))
    own, *summed = maybe_jit(jit)(h)(X, np.float32([2.]))
    np.testing.assert_allclose(own, X * X, rtol=1e-6)
    np.testing.assert_allclose(summed, np.full((2, 4), (X * X).sum()),
                               rtol=1e-6)

  @parameterized.product(cache=list(OWN_CACHES), written=[False, True],
                         first=['same', 'varying'])
  def test_own_caches_tell_types_apart(self, cache, written, first):
    def g(x, w):
      f = OWN_CACHES[cache]()
      varying, same = structure(x), structure(w)
      if written:
        f(jax.ShapeDtypeStruct(w.shape, w.dtype), x)
      for s in (same, varying) if first == 'same' else (varying, same):
        f(s, x)
      return jnp.stack([f(varying, x), f(same, x)])
    h = shard_map(g, mesh=make_mesh(4), in_specs=(P('x'), P()),
                  out_specs=P(None, 'x'))
    own, summed = maybe_jit(first == 'same')(h)(X, np.float32([2.]))
    np.testing.assert_allclose(own, X * X, rtol=1e-6)
    np.testing.assert_allclose(summed, np.full(4, (X * X).sum()), rtol=1e-6)

  @red({
      '<0.10':
          r'^ValueError: Input primal JAX type to VJP function is float32\[',
      '>=0.10': '^ValueError: Expected cotangent type',
  })
  @parameterized.product(where=WHERE, of=['type', 'structure'])
  def test_a_type_used_outside(self, where, of):
    # As a callback that runs on the host does with what it was made for.
    noted = []
    def f(x, w):
      noted.append(jax.typeof(x) if of == 'type' else structure(x))
      return x
    collect(f, where)
    ct = np.float32([2.])
    transpose = jax.linear_transpose(lambda v: 3. * v, noted[0])
    np.testing.assert_allclose(transpose(ct)[0], 3. * ct)
    np.testing.assert_allclose(jax.jit(transpose)(ct)[0], 3. * ct)

  def test_what_differs_stays_different(self):
    plain = jax.ShapeDtypeStruct((2,), np.float32)
    def f(x, w):
      s = structure(x)
      self.assertNotEqual(s, jax.ShapeDtypeStruct((2,), np.float32))
      self.assertNotEqual(s, jax.ShapeDtypeStruct((1,), np.int32))
      self.assertNotEqual(
          s, jax.ShapeDtypeStruct((1,), np.float32, weak_type=True))
      self.assertNotEqual(s, 'f32[1]')
      return x
    collect(f, ('1d', True))
    self.assertNotEqual(plain, jax.ShapeDtypeStruct((2,), np.int32))
    self.assertEqual(plain, jax.ShapeDtypeStruct((2,), np.float32))

  def test_explicit_shardings_count(self):
    mesh = jax.make_mesh((2, 2), ('x', 'y'),
                         axis_types=(AxisType.Explicit,) * 2)
    seen = []
    def f(x, y):
      a, b = structure(x), structure(y)
      seen.extend([a == b, a == structure(x + 1), a == structure(y[::-1].T)])
      return x
    with jax.set_mesh(mesh):
      a = jax.reshard(np.ones((4, 4), np.float32), P('x', 'y'))
      b = jax.reshard(np.ones((4, 4), np.float32), P('x', None))
      self.assertNotEqual(structure(a), structure(b))
      self.assertNotEqual(structure(b),
                          jax.ShapeDtypeStruct((4, 4), np.float32))
      jax.jit(shard_map(f, in_specs=(P('x', None),) * 2,
                        out_specs=P('x', None), axis_names={'x'}))(a, b)
    self.assertEqual(seen[:2], [False, True])


HOST = jax.memory.Space.Host
EDGES = np.linspace(0., 2., 5, dtype=np.float32)
TABLES = {
    'searchsorted': lambda x, w: jnp.searchsorted(EDGES * w, x),
    'digitize': lambda x, w: jnp.digitize(x, EDGES * w),
    'interp': lambda x, w: jnp.interp(x, EDGES * w, jnp.sin(EDGES * w)),
    'histogram': lambda x, w: jnp.histogram(x, bins=EDGES * w)[0],
}


class PartlyManualTest(jtu.JaxTestCase):
  """Types of structures in a shard_map over some axes of the mesh."""

  def run_over_x(self, f, jit, *args):
    g = shard_map(f, mesh=make_mesh(2, 2), in_specs=(P('x'), P()),
                  out_specs=P('x'), axis_names={'x'})
    return maybe_jit(jit)(g)(*args)

  @red(NO_VMA, bases='>=0.9.2')
  @parameterized.product(name=list(TABLES), jit=[True, False])
  def test_tables(self, name, jit):
    f, x, w = TABLES[name], np.tile(X, 2), np.float32(1.3)
    got = self.run_over_x(lambda x, w: f(x[0], w)[None], jit,
                          x.reshape(2, 4), w)
    want = [jax.jit(f)(row, w) for row in x.reshape(2, 4)]
    self.assertAllClose(got, np.stack(want), rtol=1e-5)

  @red(NO_VMA, bases='>=0.9.2')
  def test_gradient_of_interp(self):
    def total(run):
      return jax.jit(jax.grad(lambda x, w: jnp.sum(run(x, w) ** 2), (0, 1)))
    w = np.float32(1.3)
    got = total(lambda x, w: self.run_over_x(TABLES['interp'], False, x, w))
    want = total(TABLES['interp'])
    self.assertAllClose(got(X, w), want(X, w), rtol=1e-4)

  @red(NO_VMA)
  def test_type_of_a_result(self):
    seen = []
    def f(x, w):
      for y in (x, x + w):
        seen.append(jax.typeof(structure(y)) == jax.typeof(y))
      return x
    self.run_over_x(f, True, X, np.float32(2.))
    self.assertEqual(seen, [True] * 2)

  @red(NO_VMA)
  @parameterized.parameters('1d', '2d')
  def test_type_of_what_is_written_down(self, kind):
    seen = []
    def f(x, w):
      s = jax.ShapeDtypeStruct(x.shape, x.dtype,
                               **{FIELD: said(x)})
      seen.append(jax.typeof(s) == jax.typeof(x))
      out = jax.eval_shape(lambda x: jnp.sin(x) * w, s)
      seen.append(jax.typeof(out) == jax.typeof(jnp.sin(x) * w))
      return x
    collect(f, (kind, True))
    self.assertEqual(seen, [True] * 2)

  @red(OTHER_MANUAL_TYPE, bases='>=0.11.1')
  def test_memory_stays(self):
    if not hasattr(jax.ShapeDtypeStruct((), 'f'), '_memory_space'):
      self.skipTest('structures have no memory space on this release')
    seen = []
    def f(x, w):
      s = jax.ShapeDtypeStruct(x.shape, x.dtype, _memory_space=HOST,
                               **{FIELD: said(x)})
      seen.append(jax.typeof(s).memory_space)
      return x
    self.run_over_x(f, True, X, np.float32(2.))
    self.assertEqual(seen, [HOST])

  @red(NO_VMA)
  def test_used_outside(self):
    noted = []
    def f(x, w):
      noted.append(structure(x))
      return x
    self.run_over_x(f, True, X, np.float32(2.))
    out = jax.eval_shape(jnp.sin, noted[0])
    self.assertEqual((out.shape, out.dtype, getattr(out, FIELD) or None),
                     ((2,), np.float32, None))
