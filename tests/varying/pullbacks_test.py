# SPDX-License-Identifier: Apache-2.0
"""Backward rules that call what jax.vjp returned, where types grow afterwards.

The rule's function is in a loop whose carry varies in the end, or in a branch
whose index does. Results are compared with the same program without a rule, on
each device's part of the input by itself.
"""
import functools

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import MESHES
from varying.testing.common import axes_of
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
SCAN_CARRY = ('^TypeError: scan body function carry input and carry output '
              'must have equal types, but they')
UNEQUAL_BRANCHES = ('^TypeError: cond branches must have equal output types '
                    'but they differ')
WRONG_GRADIENT = (r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: '
                  r'array\(4\.3268\d*, .*DESIRED: array\(8\.303')

W = 0.7


def with_rules(f, fwd, bwd):
  g = jax.custom_vjp(f)
  g.defvjp(fwd, bwd)
  return g


def kept(f):
  return with_rules(f, lambda *args: jax.vjp(f, *args),
                    lambda pull, ct: pull(ct))


def kept_jitted(f):
  call = jax.jit(lambda pull, ct: pull(ct))
  return with_rules(f, lambda *args: jax.vjp(f, *args), call)


def kept_of_one(f):
  """Its program has other inputs than the function."""
  def fwd(w, z):
    y, pull = jax.vjp(lambda w: f(w, z), w)
    return y, (pull, jax.vjp(lambda z: f(w, z), z)[1])
  return with_rules(
      f, fwd, lambda pulls, ct: (pulls[0](ct)[0], pulls[1](ct)[0]))


def recomputed(f):
  return with_rules(f, lambda *args: (f(*args), args),
                    lambda args, ct: jax.vjp(f, *args)[1](ct))


def smooth(w, z):
  return jnp.sin(w) * jnp.cos(z) + w * w


def product(w, z):
  return w * z


def linear(w, z):
  return .5 * w + .3 * z


def nested(w, z):
  return kept(product)(jnp.sin(w), z) + z


def looped(w, z):
  return lax.scan(lambda c, _: (jnp.sin(c) * w + z, None), z, None, length=2)[0]


def carried(h, w, x):
  return lax.fori_loop(0, 3, lambda _, c: h(w, c) + .1 * x, .5)


def carried_with_data(h, w, x):
  return lax.fori_loop(0, 3, lambda _, c: h(w, x) + h(c, x) + h(x, c), w)


def chosen(h, w, x):
  return lax.cond(x > 1.5, lambda: h(w, w + 1.), lambda: 3. * w)


def chosen_with_data(h, w, x):
  return lax.cond(x > 1.5, lambda: h(w, x), lambda: 3. * w)


def chosen_with_number(h, w, x):
  return lax.switch(jnp.int32(x) % 3, [
      lambda v: h(v, 2.), lambda v: 2. * h(v, v), lambda v: 3. * v], w)


def chosen_in_loop(h, w, x):
  return lax.fori_loop(0, 2, lambda _, c: lax.cond(
      c > x, lambda: h(c, w), lambda: h(w, 1.) + .2 * x), .5)


JIT_1D, EAGER_2D = ('1d', True), ('2d', False)


class PullbackTest(jtu.JaxTestCase):

  def check(self, program, f, g, where=JIT_1D, derive=jax.value_and_grad):
    kind, jit = where
    mesh = make_mesh(*MESHES[kind])
    axes = mesh.axis_names
    x = jnp.arange(4.)
    total = shard_map(lambda w, x: lax.psum(program(g, w, x.reshape(())), axes),
                      mesh=mesh, in_specs=(P(), P(axes)), out_specs=P())
    got = maybe_jit(jit)(derive(total, (0, 1)))(W, x)
    alone = jax.vmap(lambda w, x: program(f, w, x), (None, 0), axis_name='x')
    want = jax.jit(derive(lambda w, x: alone(w, x).sum(), (0, 1)))(W, x)
    self.assertAllClose(got, want, rtol=1e-4)

  @red(SCAN_CARRY, cases=['carried', 'carried_with_data'])
  @red(UNEQUAL_BRANCHES, cases=['chosen_with_data', 'chosen_in_loop'])
  # A gradient that is summed in a branch that not all devices take.
  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: array\(12\., '
       r'.*DESIRED: array\(7\.3252', cases=['chosen'])
  @red(WRONG_GRADIENT)
  @parameterized.parameters(
      (carried, JIT_1D), (carried, EAGER_2D), (carried_with_data, JIT_1D),
      (chosen, JIT_1D), (chosen_with_data, EAGER_2D),
      (chosen_with_number, JIT_1D), (chosen_in_loop, ('2d', True)))
  def test_kept(self, program, where):
    self.check(program, smooth, kept(smooth), where)

  @red(SCAN_CARRY, cases=['carried'])
  @red(UNEQUAL_BRANCHES, cases=['chosen_with_data'])
  @red(WRONG_GRADIENT)
  @parameterized.parameters(
      (carried, JIT_1D), (chosen_with_data, JIT_1D),
      (chosen_with_number, EAGER_2D), (chosen_with_number, JIT_1D))
  def test_recomputed(self, program, where):
    self.check(program, smooth, recomputed(smooth), where)

  @red(SCAN_CARRY, cases=['carried_with_data'])
  @red(UNEQUAL_BRANCHES)
  @parameterized.parameters(
      (carried_with_data, product), (chosen_with_data, linear),
      (carried_with_data, nested), (chosen_with_data, nested),
      (carried_with_data, looped))
  def test_functions(self, program, f):
    self.check(program, f, kept(f))

  @red(SCAN_CARRY, cases=['carried_with_data'])
  @red(UNEQUAL_BRANCHES)
  @parameterized.parameters((carried_with_data,), (chosen_with_data,))
  def test_functions_of_one_input(self, program):
    self.check(program, product, kept_of_one(product))

  @red(UNEQUAL_BRANCHES)
  def test_jitted(self):
    self.check(chosen_with_data, smooth, kept_jitted(smooth))

  @red(SCAN_CARRY, cases=['carried'])
  @red(UNEQUAL_BRANCHES)
  @parameterized.product(program=[carried, chosen_with_data])
  def test_second_derivative(self, program):
    self.check(program, smooth, kept(smooth), derive=jax.hessian)

  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: array\(36\., '
       r'.*DESIRED: array\(27\.361')
  def test_batch(self):
    def program(h, w, x):
      return jax.vmap(lambda t: chosen(h, w * t, x))(jnp.arange(1., 3.)).sum()
    self.check(program, smooth, kept(smooth))

  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: array\(16\., '
       r'.*DESIRED: array\(10\.79')
  def test_constant_result(self):
    # Its cotangent would be summed, and nobody reads it.
    def f(w):
      return jnp.zeros(()), w * w
    def program(h, w, x):
      return sum(lax.cond(x > 1.5, h, lambda w: (w, 3. * w), w))
    self.check(program, f, recomputed(f))

  @red(SCAN_CARRY)
  def test_result_is_a_sum_over_devices(self):
    f = lambda w, z: lax.psum(w * z, 'x')
    program = lambda h, w, x: lax.fori_loop(
        0, 2, lambda _, c: .1 * h(w, c) + .1 * x, .5)
    self.check(program, f, kept(f))

  @red(UNEQUAL_BRANCHES)
  def test_inside(self):
    mesh = make_mesh(4)
    x = jnp.arange(4.)
    def inside(w, x):
      loss = lambda w: lax.psum(chosen_with_data(kept(smooth), w, x[0]), 'x')
      return jax.grad(loss)(w)
    got = jax.jit(shard_map(inside, mesh=mesh, in_specs=(P(), P('x')),
                            out_specs=P()))(W, x)
    want = jax.grad(lambda w: sum(chosen_with_data(smooth, w, a) for a in x))(W)
    self.assertAllClose(got, want)

  def each_input(self, f, fwd, bwd, first, hand=False):
    """The gradient of a loop whose carry is the second of f's inputs."""
    g = with_rules(f, fwd, lambda pull, ct: tuple(bwd(pull, ct)))
    def run(w, x):
      start = cast(jnp.float32(first), 'x') if hand else jnp.float32(first)
      return lax.fori_loop(0, 3, lambda _, c: g(w, c, x[0]), start)[None]
    run = shard_map(run, mesh=make_mesh(4), in_specs=(P(), P('x')),
                    out_specs=P('x'))
    return jax.jit(jax.grad(lambda w, x: run(w, x).sum(), (0, 1)))(
        W, jnp.arange(1., 5.))

  @red(SCAN_CARRY)
  @parameterized.parameters('in_order', 'reversed', 'computed', 'mapped')
  def test_each_input_as_the_function_has_it(self, order):
    # What isn't linear in the sum over devices is done to the sum, as if the
    # carry had been cast by hand: the parameter doesn't vary.
    f = lambda w, c, x: jnp.sin(w) * c * x
    fwd = lambda *args: jax.vjp(f, *args)
    bwd = lambda pull, ct: map(jnp.tanh, pull(ct))
    if order == 'reversed':
      fwd = lambda w, c, x: jax.vjp(lambda c, w, x: f(w, c, x), c, w, x)
      bwd = lambda pull, ct: [jnp.tanh(pull(ct)[n]) for n in (1, 0, 2)]
    elif order == 'computed':
      fwd = lambda w, c, x: jax.vjp(
          lambda v, x, u: u * v * x, jax.jit(lambda c: 2. * c)(c), x,
          jnp.sin(w) / 2.)
      bwd = lambda pull, ct: [jnp.tanh(pull(ct)[n]) for n in (2, 0, 1)]
    elif order == 'mapped':
      def fwd(*args):
        y, pull = jax.vmap(lambda *args: jax.vjp(f, *args))(
            *(a[None] for a in args))
        return y[0], pull
      bwd = lambda pull, ct: [jnp.tanh(a[0]) for a in jax.vmap(
          lambda pull, ct: pull(ct))(pull, ct[None])]
    self.assertAllClose(self.each_input(f, fwd, bwd, .5),
                        self.each_input(f, fwd, bwd, .5, hand=True))

  @red(SCAN_CARRY)
  @parameterized.parameters(
      *((order, how) for order in ('in_order', 'reversed', 'computed', 'one')
        for how in ('jit', 'checkpoint')), ('in_order', 'branch'))
  def test_unmatched_is_refused(self, order, how):
    # What jax.vjp is called with can't be told from another input of its type:
    # with the cast that the error says to write, the gradient is right.
    f = lambda w, c, x: jnp.sin(w) * c * x
    fwd = lambda *args: jax.vjp(f, *args)
    bwd = lambda pull, ct: pull(ct)
    if order == 'reversed':
      fwd = lambda w, c, x: jax.vjp(lambda c, w, x: f(w, c, x), c, w, x)
      bwd = lambda pull, ct: [pull(ct)[n] for n in (1, 0, 2)]
    elif order == 'computed':
      fwd = lambda w, c, x: (f(w, c, x), (w, jax.vjp(
          lambda u, c, x: u * c * x, jnp.sin(w), c, x)[1]))
      def bwd(r, ct):
        by_sine, by_c, by_x = r[1](ct)
        return by_sine * jnp.cos(r[0]), by_c, by_x
    elif order == 'one':
      fwd = lambda w, c, x: (f(w, c, x), (w, c, x, jax.vjp(
          lambda w: f(w, c, x), w)[1]))
      def bwd(r, ct):
        w, c, x, pull = r
        return *pull(ct), ct * jnp.sin(w) * x, ct * jnp.sin(w) * c
    if how == 'branch':
      # The parameter is one that a branch made.
      fwd = lambda w, c, x: jax.vjp(
          f, lax.cond(c > 0., lambda: w, lambda: 2. * w), c, x)
    else:
      fwd = (jax.jit if how == 'jit' else jax.checkpoint)(fwd)
    with self.assertRaisesRegex(
        ValueError, r"can't be told.*jax\.lax\.p(cast|vary)\(init, \('x',\)"):
      self.each_input(f, fwd, bwd, .5)
    got = self.each_input(f, fwd, bwd, .5, hand=True)
    def alone(w, x):
      return lax.fori_loop(0, 3, lambda _, c: f(w, c, x), .5)
    want = jax.grad(lambda w, x: jax.vmap(alone, (None, 0))(w, x).sum(),
                    (0, 1))(W, jnp.arange(1., 5.))
    self.assertAllClose(got, want, rtol=1e-4)

  @red(SCAN_CARRY)
  @parameterized.product(how=['jit', 'checkpoint'])
  def test_inputs_that_grow_alike(self, how):
    # Each may be any of them.
    wrap = jax.jit if how == 'jit' else jax.checkpoint
    fwd = wrap(lambda *args: jax.vjp(smooth, *args))
    g = with_rules(smooth, fwd, lambda pull, ct: pull(ct))
    program = lambda h, w, x: lax.fori_loop(
        0, 3, lambda _, c: .3 * h(c, 2. * c) + .1 * x, w)
    self.check(program, smooth, g)

  @red(SCAN_CARRY)
  @parameterized.product(kind=['1d', '2d'], computed=[True, False],
                         hidden=[True, False])
  def test_inputs_in_another_order(self, kind, computed, hidden):
    # Of equal types when it is traced; only the carry comes to vary. Its own
    # value hides that a sum is typed as one.
    def fwd(w, z):
      first = 1. * z if computed else z
      y, pull = jax.vjp(lambda z, w: smooth(w, z), first, w)
      return y, (pull, z)
    def bwd(res, ct):
      pull, z = res
      by_z, by_w = pull(ct)
      return by_w, by_z + 0. * z if hidden else by_z
    g = with_rules(smooth, fwd, bwd)
    program = lambda h, w, x: lax.fori_loop(
        0, 3, lambda _, c: .3 * h(w, c) + .1 * x, w)
    self.check(program, smooth, g, (kind, True))

  @red(SCAN_CARRY)
  def test_program_of_another_function(self):
    # Made in the rule, of a number that all share: its sum stays inside.
    inner = lambda v, x: lax.psum(v * v * x, 'x')
    f = lambda w, x: w * jax.grad(inner)(2., x)
    g = with_rules(f, lambda w, x: (f(w, x), x), lambda x, ct: (
        ct * jax.grad(inner)(2., x), jnp.zeros_like(x)))
    mesh, x = make_mesh(4), jnp.arange(4.)
    def run(w, x):
      return lax.fori_loop(0, 2, lambda _, c: g(c, x[0]) + x[0], w)[None]
    run = shard_map(run, mesh=mesh, in_specs=(P(), P('x')), out_specs=P('x'))
    got = jax.jit(jax.grad(lambda w: run(w, x).sum()))(W)
    self.assertAllClose(got, 4. * (4. * x.sum()) ** 2, check_dtypes=False)

  @red(SCAN_CARRY)
  def test_slope_of_the_rules_own_constant(self):
    # A program that was made in the rule sums as anywhere: so it is refused,
    # as it is in the program that is annotated by hand.
    def bwd(res, ct):
      w, z = res
      slope = jax.vjp(lambda u: u * z * ct, jnp.float32(1.))[1]
      return slope(jnp.ones_like(z * ct))[0], ct * w
    h = with_rules(product, lambda w, z: (w * z, (w, z)), bwd)
    for start in (lambda w: w, lambda w: cast(w, {'x'})):
      total = shard_map(
          lambda w, x: lax.psum(lax.fori_loop(
              0, 3, lambda _, c: h(c, x[0]) + .1 * x[0], start(w)), 'x'),
          mesh=make_mesh(*MESHES['1d']), in_specs=(P(), P('x')), out_specs=P())
      with self.assertRaisesRegex(ValueError, 'Custom VJP bwd rule'):
        jax.grad(total)(jnp.float32(W), jnp.arange(4.))

  @red(SCAN_CARRY, bases='>=0.9')
  def test_input_from_a_call_in_a_call_that_writes_to_a_ref(self):
    if jax.__version_info__ < (0, 9):
      self.skipTest('no jax.new_ref')
    def write(ref, z):
      ref[...] = z
      return z

    def fwd(w, z):
      twice = jax.jit(lambda ref, z: jax.jit(write)(ref, z) * 1.)
      return jax.vjp(product, w, twice(jax.new_ref(0. * w), z))

    self.check(carried, product, with_rules(
        product, fwd, lambda pull, ct: pull(ct)))

  @red(r'^AssertionError: \s*Not equal to tolerance .*ACTUAL: array\(12\., '
       r'.*DESIRED: array\(7\.5296', bases='>=0.8.1')
  def test_ref_for_a_gradient_is_refused(self):
    if not hasattr(jax.vjp(jnp.sin, 1.)[1], 'with_refs'):
      self.skipTest('no with_refs on this release')
    def bwd(pull, ct):
      ref = jax.new_ref(jnp.zeros(()))
      pull.with_refs(ref)(ct)
      return ref[...],
    g = with_rules(jnp.sin, lambda w: jax.vjp(jnp.sin, w), bwd)
    program = lambda h, w, x: lax.cond(x > 1.5, h, lambda w: 3. * w, w)
    with self.assertRaisesRegex(ValueError, 'Call it without'):
      self.check(program, jnp.sin, g)


class KeyTest(jtu.JaxTestCase):

  @parameterized.parameters(True, False)
  def test_traced_anew_outside_of_the_rule(self, jit):
    # What the rule's types allow, no other call of the same types is allowed.
    call = jax.jit(lambda w, z, ct: jax.vjp(product, w, z)[1](ct))
    h = with_rules(product, lambda w, z: (product(w, z), None),
                   lambda _, ct: call(W, 1. + W, ct))

    def inside(again, w, x):
      x = x.reshape(())
      g = jax.grad(lambda w: chosen(h, w, x))(w)
      return (g + call(W, 1. + W, x)[0] if again else cast(
          g, {'x'} - axes_of(g))).reshape(1)

    def run(again):
      f = shard_map(functools.partial(inside, again), in_specs=(P(), P('x')),
                    out_specs=P('x'), mesh=make_mesh(*MESHES['1d']))
      return maybe_jit(jit)(f)(jnp.float32(W), jnp.arange(4.))

    run(again=False)  # the rule's call is allowed
    with self.assertRaisesRegex(ValueError, 'unexpected JAX type'):
      run(again=True)


class UnusedSumTest(jtu.JaxTestCase):
  """One input's gradient, where another's would be summed over devices."""

  def run_per_device(self, program, x):
    mesh = make_mesh(4)
    run = shard_map(lambda x: program(x[0])[None], mesh=mesh,
                    in_specs=P('x'), out_specs=P('x'))
    return jax.jit(run)(x)

  def check(self, program):
    x = jnp.arange(4.)
    got = self.run_per_device(program, x)
    want = jnp.stack([program(a) for a in x])
    self.assertAllClose(got, want, rtol=1e-5)

  def test_guard_in_a_branch(self):
    self.check(lambda x: lax.cond(
        x > 1.5, lambda x: jax.vjp(smooth, x, W)[1](x)[0], lambda x: x, x))

  @red({
      '<0.8.1':
          r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
          'argument to vjp function',
      '>=0.8.1':
          r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
          'argument to VJP function',
  })
  def test_in_a_loop(self):
    self.check(lambda x: lax.while_loop(
        lambda c: c < x, lambda c: c + jax.vjp(product, c, W)[1](1.)[0],
        x - 2.))

  def test_guard_in_a_loop_in_a_branch(self):
    body = lambda c, _: (jax.vjp(smooth, c, W)[1](c)[0], None)
    self.check(lambda x: lax.cond(
        x > 1.5, lambda x: lax.scan(body, x, None, length=2)[0],
        lambda x: x, x))

  @red(UNEQUAL_BRANCHES)
  def test_in_a_branch_whose_index_varies_late(self):
    def program(x):
      def step(_, c):
        first, second, _ = c
        return x, first, lax.cond(
            second > 1., lambda: jax.vjp(smooth, x, W)[1](x)[0] + first,
            lambda: first)
      return lax.fori_loop(0, 3, step, (.5, .5, .5))[2]
    self.check(program)

  @red(UNEQUAL_BRANCHES)
  def test_used_is_refused(self):
    with self.assertRaisesRegex(ValueError, 'psum over mesh axis .x.'):
      self.check(lambda x: lax.cond(
          x > 1.5, lambda x: jax.vjp(smooth, x, W)[1](x)[1], lambda x: x, x))
