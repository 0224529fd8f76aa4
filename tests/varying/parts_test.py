# SPDX-License-Identifier: Apache-2.0
"""Backward rules of a replicated input, by what made what they return.

A table of rules is run in each container, in each place. What is right is
compared with the derivative of the function without a rule, of the whole
arrays, on one device.
"""
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
WHOLE_NOT_NAMED_BY_RULE = ('^AssertionError: "may be the whole already.* does '
                           'not match "Custom VJP bwd')
WHOLE_NOT_NAMED = ('^AssertionError: "may be the whole already.* does not '
                   'match "shard_map applied')
WHOLE_NOT_NAMED_IN_SCAN = ('^AssertionError: "may be the whole already.* does '
                           'not match "Scan carry input and output')
ONLY_BWD_RULE = '^ValueError: Custom VJP bwd rule'
NEEDS_REPLICATION = '^ValueError: .*out_specs which require replication'
# Of a check in the transpose of a conditional, which says nothing.
COND_TYPES = '^AssertionError: raised by conditionals._cond_transpose'
UNEQUAL_BRANCHES = '^Exception: The branches of cond produced mismatched'
SUM_UNDER_VMAP = '^TypeError: _psum_invariant_abstract_eval'
MIXED_AXIS_TYPES = {
    '<0.7':
        '^ValueError: AxisTypes should be the same in a tuple subset of '
        'PartitionSpec',
    '>=0.7,<0.9': '^ValueError: Tuple subset of `PartitionSpec` cannot contain',
    '>=0.9': '^ValueError: Cannot lower jaxpr with verifier errors',
}
NO_RESULT_TYPES = '^StoreException: Store empty'
REP_ERROR = '^_RepError: .*NoFail'
SCAN_CARRY = '^ValueError: Scan carry input and output'
WHILE_CARRY = '^TypeError: while_loop body function carry input and'
# Of jax.grad, on 0.6.0 (jax#28193).
COTANGENT_TYPE = '^ValueError: unexpected JAX type .* for argument to vjp'
WHOLE_NOT_NAMED_BY_GRAD = ('^AssertionError: "may be the whole already.* does '
                           'not match "unexpected JAX type')

# Rules that call jax.grad.
BY_CAST = {'what': 'derivative_by_cast_times_cotangent'}
BY_WHOLE = {'what': ['derivative_times_cotangent', 'kept_grad_times_cotangent',
                     'kept_value_and_grad_times_cotangent']}

N, DIM = 4, 3
W = np.random.RandomState(0).randn(DIM).astype(np.float32)
X = np.random.RandomState(1).randn(2 * N, DIM).astype(np.float32)
X[1] = 0.  # a row that adds nothing, so devices can have several numbers


def function(w, x):
  return jnp.tanh(x @ w).sum()


def slope(w, x):
  return (1. - jnp.tanh(x @ w) ** 2) @ x


def with_rule(bwd, keep=lambda w, x, axes: None):
  """The function, of mesh axes; `bwd` of w, x, ct and what `keep` keeps."""
  def of_axes(axes):
    f = jax.custom_vjp(lambda w, x: function(w, x))
    f.defvjp(lambda w, x: (function(w, x), (w, x, keep(w, x, axes))),
             lambda r, ct: (bwd(r[0], r[1], ct, r[2], axes),
                            jnp.zeros_like(r[1])))
    return f
  return of_axes


def own(w, x, ct, kept, axes):
  return slope(w, x) * ct


def total(*args):
  return lax.psum(own(*args), args[-1])


def of_total(change):
  """A rule that changes a sum, by what w, x and axes are."""
  return with_rule(lambda *args: change(
      total(*args), args[0], args[1], args[-1]))


def finite(x):
  return jnp.isfinite(x.sum())


def guarded(x, g):
  return lax.cond(finite(x), lambda g: g, jnp.zeros_like, g)


def first(axes):
  return axes[0]


PARTS = {
    'own': with_rule(own),
    'own_guarded': with_rule(lambda *args: lax.cond(
        finite(args[1]), lambda g: g, lambda g: 0. * g, own(*args))),
    'own_masked': with_rule(
        lambda *args: jnp.where(lax.axis_index(args[-1]) >= 0, own(*args), 0.)),
    'own_at_a_mean_of_what_all_share': with_rule(
        lambda w, x, ct, kept, axes: own(
            lax.pmean(w, axes), x, ct, kept, axes)),
    'derivative_by_cast_times_cotangent': with_rule(
        lambda w, x, ct, kept, axes: ct * kept,
        lambda w, x, axes: jax.grad(function)(cast(w, axes), x)),
    'pullback_of_cast': with_rule(lambda w, x, ct, kept, axes: jax.vjp(
        lambda w: function(w, x), cast(w, axes))[1](ct)[0]),
    'zeros_of_another_type': with_rule(
        lambda *args: own(*args) + jnp.zeros_like(args[1][0])),
}

WHOLES = {
    'sum': with_rule(total),
    'mean': with_rule(lambda *args: lax.pmean(
        own(*args), args[-1]) * lax.psum(1, args[-1])),
    'pullback': with_rule(lambda w, x, ct, kept, axes: jax.vjp(
        lambda w: function(w, x), w)[1](ct)[0]),
    'kept_pullback': with_rule(
        lambda w, x, ct, kept, axes: kept(ct)[0],
        lambda w, x, axes: jax.vjp(lambda w: function(w, x), w)[1]),
}

# These vary by a predicate alone.
GUARDED = {
    'cond': of_total(lambda g, w, x, axes: guarded(x, g)),
    'cond_then_scaled': of_total(lambda g, w, x, axes: guarded(x, g) * 2. / 2.),
    'cond_in_jit': of_total(lambda g, w, x, axes: jax.jit(guarded)(x, g)),
    'switch': of_total(lambda g, w, x, axes: lax.switch(
        finite(x).astype(int), [jnp.zeros_like, lambda g: g], g)),
    'while': of_total(lambda g, w, x, axes: lax.while_loop(
        lambda c: c[0] < finite(x), lambda c: (True, -c[1]), (False, -g))[1]),
    'fori_loop': of_total(lambda g, w, x, axes: lax.fori_loop(
        0, finite(x).astype(int), lambda _, g: -g, -g)),
    'pullback': with_rule(lambda w, x, ct, kept, axes: guarded(x, jax.vjp(
        lambda w: function(w, x), w)[1](ct)[0])),
}

REFUSED = {
    'sum_then_cast': of_total(lambda g, w, x, axes: cast(g, axes)),
    'sum_then_cast_over_one': of_total(
        lambda g, w, x, axes: cast(g, first(axes))),
    'sum_plus_zero': of_total(lambda g, w, x, axes: g + 0. * x.sum()),
    'sum_chosen': of_total(
        lambda g, w, x, axes: jnp.where(finite(x), g, 0.)),
    'maximum_of_sum': of_total(
        lambda g, w, x, axes: lax.pmax(g, axes) + 0. * x.sum()),
    'sum_masked': of_total(
        lambda g, w, x, axes: jnp.where(lax.axis_index(axes) == 0, g, 0.)),
    'derivative_times_cotangent': with_rule(
        lambda w, x, ct, kept, axes: ct * jax.grad(function)(w, x)),
    'kept_grad_times_cotangent': with_rule(
        lambda w, x, ct, kept, axes: ct * kept,
        lambda w, x, axes: jax.grad(function)(w, x)),
    'kept_value_and_grad_times_cotangent': with_rule(
        lambda w, x, ct, kept, axes: ct * kept,
        lambda w, x, axes: jax.value_and_grad(function)(w, x)[1]),
    'kept_sum_times_cotangent': with_rule(
        lambda w, x, ct, kept, axes: ct * kept,
        lambda w, x, axes: lax.psum(slope(w, x), axes)),
    'gather': with_rule(lambda *args: lax.all_gather(
        own(*args), args[-1]).sum(0)),
    'own_by_a_norm': with_rule(lambda w, x, ct, kept, axes: own(
        w, x, ct, kept, axes) * lax.psum(ct ** 2, axes) / lax.psum(1., axes)),
    'what_all_share_then_cast': with_rule(
        lambda w, x, ct, kept, axes: cast(w, axes)),
}


def plain(f, w, x):
  return f(w, x)


def jitted(f, w, x):
  return jax.jit(f)(w, x)


def by_keyword(f, w, x):
  return f(w=w, x=x)


def scanned(f, w, x, reverse=False):
  return lax.scan(lambda c, row: (c + f(w, row[None]), None), 0. * x.sum(), x,
                  reverse=reverse)[0]


def scanned_from_behind(f, w, x):
  return scanned(f, w, x, reverse=True)


def checkpointed(f, w, x):
  return jax.checkpoint(f)(w, x)


def mapped(f, w, x):
  return jax.vmap(lambda row: f(w, row[None]))(x).sum()


def branched(f, w, x):
  return lax.cond(w[0] < 1e3, f, lambda w, x: 0. * x.sum(), w, x)


def called(f, w, x):
  g = jax.custom_vjp(f)
  g.defvjp(lambda w, x: (f(w, x), (w, x)), lambda r, ct: jax.vjp(f, *r)[1](ct))
  return g(w, x)


def looped(f, w, x, rows=len):
  """`f`, whose derivative another rule takes row by row, in a while_loop."""
  def bwd(r, ct):
    w, x = r
    def row(c):
      i, by_w, by_x = c
      pull = jax.vjp(f, w, lax.dynamic_slice_in_dim(x, i, 1))[1]
      dw, dx = pull(ct)
      return i + 1, by_w + dw, lax.dynamic_update_slice_in_dim(by_x, dx, i, 0)
    return lax.while_loop(lambda c: c[0] < rows(x), row, (
        0, jnp.zeros_like(w), jnp.zeros_like(x)))[1:]
  g = jax.custom_vjp(lambda w, x: f(w, x))
  g.defvjp(lambda w, x: (f(w, x), (w, x)), bwd)
  return g(w, x)


def looped_over_own_rows(f, w, x):
  """As `looped`; the first device has one row, the others two."""
  return looped(f, w, x, lambda x: jnp.count_nonzero(x.any(1)))


def looped_over_finite_rows(f, w, x):
  """As `looped`; all devices have two rows, which no type says."""
  return looped(f, w, x, lambda x: jnp.count_nonzero(jnp.isfinite(x).all(1)))


SIMPLE = [plain, jitted, by_keyword, checkpointed, branched]
LOOPS = [scanned, scanned_from_behind]
CONTAINERS = [*SIMPLE, *LOOPS, looped, mapped]


def gradient(rule, container, inside=True, mesh=None, jit=True):
  """By w, of the sum over devices."""
  mesh = mesh or make_mesh(N)
  axes = mesh.axis_names
  f = rule(axes)
  loss = lambda w, x: lax.psum(container(f, w, x), axes)
  specs = P(), P(axes)
  if inside:
    g = shard_map(jax.grad(loss), mesh=mesh, in_specs=specs, out_specs=P())
  else:
    g = jax.grad(shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P()))
  return maybe_jit(jit)(g)(W, X)


def nested_gradient(rule, at):
  """By w, of the sum over devices: a map over 'y' in one over 'x'.

  It is taken in both maps, between them or outside of both.
  """
  f = rule(('x', 'y'))
  grad = [jax.grad if place == at else lambda f: f for place in NESTED]
  loss = lambda w, x: lax.psum(f(w, x), ('x', 'y'))
  inner = grad[1](shard_map(
      grad[0](loss), in_specs=(P(), P('y')), out_specs=P(), axis_names={'y'}))
  return jax.jit(grad[2](shard_map(
      lambda w, x: inner(w, x), mesh=make_mesh(2, 2), in_specs=(P(), P('x')),
      out_specs=P(), axis_names={'x'})))(W, X)


NESTED = ['inside', 'between', 'outside']
WANT = np.asarray(jax.grad(function)(W, X))
WHERE = [dict(inside=True), dict(inside=False), dict(mesh=(2, 2)),
         dict(jit=False)]


class TableTest(jtu.JaxTestCase):

  def check(self, rule, container, mesh=(N,), **where):
    got = gradient(rule, container, mesh=make_mesh(*mesh), **where)
    np.testing.assert_allclose(got, WANT, rtol=1e-4, atol=1e-6)

  @parameterized.product(container=[plain, jitted, checkpointed],
                         what=[*WHOLES], where=WHERE)
  def test_whole(self, container, what, where):
    self.check(WHOLES[what], container, **where)

  @parameterized.product(container=[plain, jitted, checkpointed],
                         what=[*GUARDED], where=WHERE)
  def test_whole_that_a_predicate_chooses(self, container, what, where):
    # As pristine JAX has it: it isn't summed again.
    self.check(GUARDED[what], container, **where)

  @parameterized.product(container=[branched, called, scanned, looped],
                         what=['cond', 'while'])
  def test_whole_in_a_container(self, container, what):
    self.check(GUARDED[what], container)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(COTANGENT_TYPE, bases='==0.6.0', cases=BY_CAST)
  @red(SCAN_CARRY, bases='<0.8.2', cases=['scanned', 'scanned_from_behind'])
  @red(COND_TYPES, bases='<0.8.1', cases=['branched'])
  @red(UNEQUAL_BRANCHES, bases='>=0.8.1,<0.8.2', cases=['branched'])
  @red(WHILE_CARRY, bases='<0.8.2', cases=['looped'])
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  @parameterized.product(container=CONTAINERS, what=[*PARTS])
  def test_part(self, container, what):
    self.check(PARTS[what], container)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(COTANGENT_TYPE, bases='==0.6.0', cases=BY_CAST)
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  @parameterized.product(what=[*PARTS])
  def test_part_over_two_axes(self, what):
    self.check(PARTS[what], plain, mesh=(2, 2))

  def check_refused(self, rule, container, mesh=(N,), **where):
    with self.assertRaisesRegex(
        ValueError, 'may be the whole already.*pmean.*psum'):
      gradient(rule, container, mesh=make_mesh(*mesh), **where)

  @red({
      '<0.8.2': WHOLE_NOT_NAMED,
      '>=0.8.2': WHOLE_NOT_NAMED_BY_RULE,
  }, bases='>=0.8.1,<0.9', cases={
      'container': 'mapped', 'what': ['gather', 'what_all_share_then_cast']})
  @red(SUM_UNDER_VMAP, bases='>=0.8.1,<0.9', cases=['mapped'])
  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED_BY_GRAD, bases='==0.6.0', cases=BY_WHOLE)
  @red(WHILE_CARRY, bases='<0.8.2', cases=['looped'])
  @red(WHOLE_NOT_NAMED_IN_SCAN, bases='<0.8.2',
       cases=['scanned', 'scanned_from_behind'])
  @red(COND_TYPES, bases='<0.8.1', cases=['branched'])
  @red(UNEQUAL_BRANCHES, bases='>=0.8.1,<0.8.2', cases=['branched'])
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  @parameterized.product(container=CONTAINERS, what=[*REFUSED])
  def test_refused(self, container, what):
    self.check_refused(REFUSED[what], container)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  def test_whole_that_a_predicate_chooses_meets_what_varies(self):
    self.check_refused(of_total(
        lambda g, w, x, axes: guarded(x, g) + 0. * x.sum()), plain)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED_BY_GRAD, bases='==0.6.0', cases=BY_WHOLE)
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  @parameterized.product(what=[*REFUSED])
  def test_refused_over_two_axes(self, what):
    self.check_refused(REFUSED[what], plain, mesh=(2, 2))

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED_BY_GRAD, bases='==0.6.0', cases=BY_WHOLE)
  @red({
      '<0.7': REP_ERROR,
      '>=0.7,<0.8.2': WHOLE_NOT_NAMED,
  })
  @parameterized.product(what=[*REFUSED])
  def test_refused_outside(self, what):
    self.check_refused(REFUSED[what], plain, inside=False)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(COTANGENT_TYPE, bases='==0.6.0', cases=BY_WHOLE)
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  @parameterized.product(what=[
      r for r in REFUSED if r != 'what_all_share_then_cast'])
  def test_right_on_an_axis_of_size_one(self, what):
    self.check(REFUSED[what], plain, mesh=(1,))


class OwnNumberOfRowsTest(jtu.JaxTestCase):
  """Rules in a loop that devices leave apart."""

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(COTANGENT_TYPE, bases='==0.6.0', cases=BY_CAST)
  @red(WHILE_CARRY, bases='<0.8.2')
  @parameterized.product(what=[
      r for r in PARTS if r != 'own_at_a_mean_of_what_all_share'])
  def test_part(self, what):
    got = gradient(PARTS[what], looped_over_own_rows)
    np.testing.assert_allclose(got, WANT, rtol=1e-4, atol=1e-6)

  @parameterized.product(what=['pullback', 'kept_pullback'])
  def test_derivative_that_no_device_sums_alone(self, what):
    got = gradient(WHOLES[what], looped_over_finite_rows)
    np.testing.assert_allclose(got, WANT, rtol=1e-4, atol=1e-6)

  @red('^AssertionError: ValueError not raised')
  @parameterized.product(what=['sum', 'mean'])
  def test_communication_is_refused(self, what):
    with self.assertRaisesRegex(
        ValueError, '(?s)is inside a .*while_loop.*pmax'):
      gradient(WHOLES[what], looped_over_finite_rows)


class NestedTest(jtu.JaxTestCase):
  """Rules in a map over one axis, in a map over the other."""

  def setUp(self):
    super().setUp()
    if not hasattr(jax, 'shard_map'):
      self.skipTest('0.6.0 has no maps in maps')

  def check(self, rule, at):
    np.testing.assert_allclose(
        nested_gradient(rule, at), WANT, rtol=1e-4, atol=1e-6)

  @red(MIXED_AXIS_TYPES, bases='>=0.6.1', cases={
      'at': ['between', 'outside'], 'what': 'kept_pullback'})
  @parameterized.product(at=NESTED, what=[*WHOLES])
  def test_whole(self, at, what):
    self.check(WHOLES[what], at)

  @parameterized.product(at=NESTED, what=['cond', 'while', 'pullback'])
  def test_whole_that_a_predicate_chooses(self, at, what):
    self.check(GUARDED[what], at)

  @red(MIXED_AXIS_TYPES, bases='>=0.6.1,<0.9', cases={
      'at': ['between', 'outside'],
      'what': 'derivative_by_cast_times_cotangent'})
  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(NO_RESULT_TYPES, bases='>=0.6.1,<0.7', cases=['between'])
  @red(REP_ERROR, bases='>=0.6.1,<0.7', cases=['outside'])
  @red(NEEDS_REPLICATION, bases='>=0.6.1,<0.8.2')
  @parameterized.product(at=NESTED, what=[*PARTS])
  def test_part(self, at, what):
    self.check(PARTS[what], at)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED, bases='>=0.6.1,<0.7', cases={
      'at': 'between', 'what': 'sum_then_cast_over_one'})
  @red(NO_RESULT_TYPES, bases='>=0.6.1,<0.7', cases=['between'])
  @red(REP_ERROR, bases='>=0.6.1,<0.7', cases=['outside'])
  @red(WHOLE_NOT_NAMED, bases='>=0.6.1,<0.8.2')
  @parameterized.product(at=NESTED, what=[*REFUSED])
  def test_refused(self, at, what):
    with self.assertRaisesRegex(
        ValueError, 'may be the whole already.*pmean.*psum'):
      nested_gradient(REFUSED[what], at)


class ResidualTest(jtu.JaxTestCase):
  """Rules of a function whose result is the same on all devices."""

  def gradient(self, f, fwd, bwd):
    g = jax.custom_vjp(f)
    g.defvjp(fwd, bwd)
    return jax.jit(shard_map(
        jax.grad(g), mesh=make_mesh(N), in_specs=(P(), P('x')),
        out_specs=P()))(W, X)

  def check(self, f, fwd, bwd, reference):
    got = self.gradient(f, fwd, bwd)
    want = jax.grad(reference)(W, X)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)

  @red(COTANGENT_TYPE, bases='==0.6.0')
  def test_kept_derivative(self):
    f = lambda w, x: lax.psum(function(w, x), 'x')
    self.check(f, lambda w, x: (f(w, x), (jax.grad(function)(w, x), x)),
               lambda r, ct: (ct * r[0], jnp.zeros_like(r[1])), function)

  @red(COTANGENT_TYPE, bases='==0.6.0')
  @parameterized.parameters(True, False)
  def test_kept_derivative_that_a_predicate_chooses(self, in_fwd):
    f = lambda w, x: lax.psum(function(w, x), 'x')
    def fwd(w, x):
      g = jax.grad(function)(w, x)
      return f(w, x), (guarded(x, g) if in_fwd else g, x)
    def bwd(r, ct):
      g, x = r
      return ct * g if in_fwd else guarded(x, ct * g), jnp.zeros_like(x)
    self.check(f, fwd, bwd, function)

  def test_penalty_that_a_predicate_chooses(self):
    f = lambda w, x: .5 * jnp.sum(w ** 2)
    self.check(f, lambda w, x: (f(w, x), (w, x)),
               lambda r, ct: (guarded(r[1], ct * r[0]), jnp.zeros_like(r[1])),
               f)

  @red('^AssertionError: ValueError not raised')
  def test_choice_among_parts_is_refused(self):
    # No device has the gradient: pristine JAX returns one's own choice.
    f = lambda w, x: lax.psum(jnp.maximum(w[0], x[0, 0]), 'x')
    def bwd(r, ct):
      w, x = r
      by_w = lax.cond(w[0] > x[0, 0], lambda ct: jnp.zeros(DIM).at[0].set(ct),
                      lambda ct: jnp.zeros(DIM), ct)
      return by_w, jnp.zeros_like(x)
    with self.assertRaisesRegex(ValueError, 'may choose among parts'):
      self.gradient(f, lambda w, x: (f(w, x), (w, x)), bwd)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  def test_part_by_the_index_of_a_device(self):
    f = lambda w, x: lax.psum(
        jnp.where(lax.axis_index('x') == 1, w[0], 0.), 'x')
    def bwd(r, ct):
      mine = lax.axis_index('x') == 1
      return jnp.where(mine, ct, 0.) * jnp.eye(DIM)[0], jnp.zeros_like(r)
    self.check(f, lambda w, x: (f(w, x), x), bwd, lambda w, x: w[0])

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  def test_part_of_a_rule_that_knows_what_is_differentiated(self):
    # As equinox's rules do, which refuse a derivative by what has none.
    g = jax.custom_vjp(function)
    def fwd(w, x):
      self.assertTrue(w.perturbed)
      self.assertFalse(x.perturbed)
      return function(w.value, x.value), (w.value, x.value)
    g.defvjp(fwd, lambda r, ct: (ct * slope(*r), jnp.zeros_like(r[1])),
             symbolic_zeros=True)
    got = jax.jit(shard_map(
        jax.grad(lambda w, x: lax.psum(g(w, x), 'x')), mesh=make_mesh(N),
        in_specs=(P(), P('x')), out_specs=P()))(W, X)
    np.testing.assert_allclose(got, WANT, rtol=1e-4, atol=1e-6)


class ReducedByForwardRuleTest(jtu.JaxTestCase):
  """Kept pullbacks, at what a collective made of the input."""

  def gradient(self, reduce, pullback, cast_first):
    f = lambda w: jnp.sin(w)
    g = jax.custom_vjp(lambda w: f(reduce(w)))
    g.defvjp(lambda w: pullback(f, reduce, w), lambda pull, ct: (pull(ct)[0],))
    def loss(w, x):
      if cast_first:
        w = cast(w, 'x')
      step = lambda c, row: (.9 * c + .1 * g(c) + .01 * (row @ row), None)
      return lax.psum(lax.scan(step, w, x)[0], 'x')
    return jax.jit(shard_map(
        jax.grad(loss), mesh=make_mesh(N), in_specs=(P(), P('x')),
        out_specs=P()))(jnp.float32(.3), X)

  @red('^TypeError: scan body function carry input and carry output')
  @parameterized.parameters(
      (lambda w: lax.pmean(w, 'x'),), (lambda w: lax.psum(w, 'x') / 4.,),
      (lambda w: lax.pmax(w, 'x'),), (lambda w: lax.pmean(w, 'x') + 0. * w,),
      (lambda w: lax.all_gather(w, 'x').sum() / 4.,), (lambda w: w,))
  def test_as_with_the_carry_cast(self, reduce):
    pullback = lambda f, reduce, w: jax.vjp(f, reduce(w))
    got, want = (self.gradient(reduce, pullback, c) for c in (False, True))
    self.assertTrue(np.any(want))
    np.testing.assert_allclose(got, want, rtol=1e-5)

  @red('^TypeError: scan body function carry input and carry output')
  def test_refused_where_it_cannot_be_told(self):
    pullback = lambda f, reduce, w: jax.jit(lambda p: jax.vjp(f, p))(reduce(w))
    with self.assertRaisesRegex(ValueError, 'Which inputs of jax.vjp vary'):
      self.gradient(lambda w: lax.pmean(w, 'x'), pullback, False)


class SumOfPartsTest(jtu.JaxTestCase):

  def gradient(self, bwd):
    f = jax.custom_vjp(lambda x, w: lax.psum(w * lax.psum(x, 'x'), 'x'))
    f.defvjp(lambda x, w: (f(x, w), w), lambda w, ct: (bwd(w, ct), None))
    return jax.jit(shard_map(
        jax.grad(lambda x, w: jnp.sum(f(x, w))), mesh=make_mesh(N),
        in_specs=P('x'), out_specs=P('x')))(jnp.ones(N), jnp.arange(1., 1 + N))

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  def test_of_what_each_device_makes_of_a_cotangent(self):
    # The gradient of sum(w) * sum(x). Where JAX has always refused it, the way
    # out is the cotangent times the sum.
    late = jax.__version_info__ >= (0, 8, 2)
    got = self.gradient(lambda w, ct: (
        ct * lax.psum(w, 'x') if late else lax.psum(ct * w, 'x')))
    np.testing.assert_allclose(got, np.full(N, 10.), rtol=1e-6)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
