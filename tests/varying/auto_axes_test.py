# SPDX-License-Identifier: Apache-2.0
"""Operations along automatic axes where devices diverge."""
import jax
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
import numpy as np
from testing.red import red
from testing.sharding import partly_manual, shard_map
from varying.testing import common
from varying.testing.common import P

config.parse_flags_with_absl()

# What pristine JAX says.
PERMUTES = "^AssertionError: 'collective-permute' unexpectedly found in"
NOT_FEWER = '^AssertionError: [0-9]+ not greater than [0-9]+'

X = np.random.RandomState(0).randn(16, 8).astype(np.float32)
KERNEL = np.array([.5, .25, .125], np.float32)


def convolved(x):
  return jax.vmap(lambda c: jnp.convolve(c, KERNEL, mode='same'), 1, 1)(x)


def updated(x):
  return lax.dynamic_update_slice_in_dim(x, 2. * x[:3], 2, 0)


MOVES = {
    'roll': lambda x: jnp.roll(x, 1, 0),
    'flip': lambda x: jnp.flip(x, 0),
    'diff': lambda x: jnp.pad(jnp.diff(x, axis=0), ((0, 1), (0, 0))),
    'concatenate': lambda x: jnp.concatenate([x[2:], 3. * x[:2]]),
    'split': lambda x: jnp.concatenate(jnp.split(x, 2)[::-1]),
    'convolve': convolved,
    'regrouped': lambda x: x.reshape(4, 2, 8).swapaxes(0, 1).reshape(x.shape),
    'window': lambda x: lax.reduce_window(
        x, -np.inf, lax.max, (3, 1), (1, 1), 'SAME'),
}


def branch(op, x, p):
  return lax.cond(p, lambda x: op(x) + x, lambda x: 3. * x, x)


def loop(op, x, p):
  return lax.while_loop(lambda c: c[0] < jnp.where(p, 3, 1),
                        lambda c: (c[0] + 1, op(c[1]) / 2.), (0, x))[1]


def nested(op, x, p):
  def yes(x):
    f = jax.checkpoint(jax.jit(lambda x: jnp.sin(op(x))))
    return lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
  return lax.cond(p, yes, lambda x: x, x)


def placed(x, mesh, spec):
  """`x`, split along automatic axes of the mesh."""
  if spec is None:
    return x
  if jax.__version_info__ >= (0, 8):  # before, only by the mesh of outside
    mesh = jax.sharding.get_abstract_mesh()
  spec = NamedSharding(mesh, spec)
  return lax.with_sharding_constraint(x, spec)


def program(form, op, mesh, spec):
  """Devices along 'x' diverge; all other axes of the mesh are automatic."""
  def body(x, first):
    return form(op, placed(x, mesh, spec), first[0] > 0)
  auto = mesh.axis_names[1:]
  return shard_map(body, mesh=mesh, in_specs=(P('x'), P('x')),
                   out_specs=P('x'), **partly_manual(*auto, of=mesh.axis_names))


def oracle(form, op, x):
  return jnp.concatenate([form(op, x[:8], True), form(op, x[8:], False)])


def constraints(text):
  return text.count('sharding_constraint') + text.count('@Sharding')


def swapped(a, b):
  return b, a


SWAPS = {
    'jit': jax.jit(swapped),
    'scan': lambda a, b: lax.scan(
        lambda c, _: (swapped(*c), None), (a, b), None, length=3)[0],
    'fori_loop': lambda a, b: lax.fori_loop(
        0, 3, lambda _, c: swapped(*c), (a, b)),
}


class AutoAxesTest(jtu.JaxTestCase):

  def check(self, form, op, sizes=(2, 4), spec=P('y'), jit=True):
    f = program(form, op, common.make_mesh(*sizes), spec)
    first = np.array([1, 0])
    w = np.random.RandomState(1).randn(*X.shape).astype(np.float32)
    grad = jax.grad(lambda x, first: jnp.sum(w * f(x, first)))
    both = [(f, oracle(form, op, X))]
    if form is not loop:  # a while loop has no reverse-mode derivative
      both.append((grad, jax.grad(
          lambda x: jnp.sum(w * oracle(form, op, x)))(X)))
    for g, want in both:
      # Run with a permute, it would wait forever.
      text = jax.jit(g).lower(X, first).compile().as_text()
      self.assertNotIn('collective-permute', text)
      self.assertAllClose(np.asarray(common.maybe_jit(jit)(g)(X, first)),
                          np.asarray(want), rtol=1e-5, atol=1e-5)

  @red(PERMUTES)
  @jtu.sample_product(op=list(MOVES))
  def test_moves(self, op):
    self.check(branch, MOVES[op])

  @red(PERMUTES)
  @jtu.sample_product(form=[loop, nested], op=['roll', 'flip', 'convolve'])
  def test_moves_within(self, form, op):
    self.check(form, MOVES[op])

  @red(NOT_FEWER)
  def test_fft(self):
    def op(x):  # of rank 3, and split along the last axis
      y = jnp.fft.fft(x.T.reshape(2, 4, -1).astype(jnp.complex64))
      return y.real.reshape(x.T.shape).T
    # Not run: on some stock releases the compiler aborts the process.
    self.assertGreater(*self.on_cpu_and_tpu(branch, op, (2, 4)))

  @red(PERMUTES)
  def test_update(self):
    self.check(branch, updated)

  @red(PERMUTES)
  @jtu.sample_product(form=[branch, loop, nested])
  def test_two_axes(self, form):
    self.check(form, lambda x: jnp.roll(x, 1, 0) + x.T, (2, 2, 2), P('y', 'z'))

  @red(PERMUTES)
  def test_two_axes_swapped(self):
    self.check(loop, lambda x: 2. * x.T, (2, 2, 2), P('y', 'z'))

  @red(PERMUTES, cases=['scan', 'fori_loop'])
  # Between them, jit's own call is gone before the branches are compiled.
  @red(PERMUTES, bases='<0.7')
  @red(PERMUTES, bases='>=0.11')
  @jtu.sample_product(swap=list(SWAPS))
  def test_two_axes_handed_on(self, swap):
    # No operation swaps the axes: a body or a call returns one as another.
    mesh = common.make_mesh(2, 2, 2)
    def body(a, b, first):
      a, b = placed(a, mesh, P('y')), placed(b, mesh, P('z'))
      return lax.cond(first[0] > 0, SWAPS[swap], lambda a, b: (a, b), a, b)
    f = shard_map(body, mesh=mesh, in_specs=P('x'), out_specs=P('x'),
                  **partly_manual('y', 'z', of=mesh.axis_names))
    first = np.array([1, 0])
    text = jax.jit(f).lower(X, 3. * X, first).compile().as_text()
    self.assertNotIn('collective-permute', text)  # it would wait forever
    a, b = jax.jit(f)(X, 3. * X, first)
    want = np.concatenate([3. * X[:8], X[8:]])
    self.assertArraysEqual(np.asarray(a), want)
    self.assertArraysEqual(np.asarray(a) + np.asarray(b), 4. * X)

  @red(PERMUTES)
  @jtu.sample_product(form=[branch, loop, nested])
  def test_eager(self, form):
    self.check(form, MOVES['roll'], jit=not common.RUNS_PARTLY_MANUAL)

  @red(PERMUTES)
  @jtu.sample_product(form=[branch, nested])
  def test_axis_of_one_device(self, form):
    self.check(form, MOVES['roll'], (2, 4, 1), P('y', 'z'))

  def text(self, form, op, sizes, platform='cpu'):
    f = jax.jit(program(form, op, common.make_mesh(*sizes), None))
    first = np.array([1, 0])[:sizes[0]]
    return f.trace(X, first).lower(lowering_platforms=(platform,)).as_text()

  def test_guard_nobody_parts(self):
    # One device along 'x': XLA's permute stays, and ends.
    f = jax.jit(program(branch, MOVES['roll'], common.make_mesh(1, 4), P('y')))
    compiled = f.lower(X, np.array([1])).compile()
    self.assertIn('collective-permute', compiled.as_text())
    self.assertAllClose(np.asarray(compiled(X, np.array([1]))),
                        np.roll(X, 1, 0) + X)

  def on_cpu_and_tpu(self, *args):
    return [constraints(self.text(*args, platform))
            for platform in ('cpu', 'tpu')]

  def test_guard_text(self):
    # Where nothing moves, and where XLA splits nothing.
    for op, sizes in [(lambda x: jnp.sin(x) @ x.T, (2, 4)),
                      (MOVES['roll'], (2, 1))]:
      self.assertEqual(*self.on_cpu_and_tpu(branch, op, sizes))

  @red(NOT_FEWER)
  def test_other_platforms_keep_their_text(self):
    self.assertGreater(*self.on_cpu_and_tpu(branch, MOVES['roll'], (2, 4)))
