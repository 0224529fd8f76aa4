# SPDX-License-Identifier: Apache-2.0
"""Backward rules whose cotangent varies where its argument doesn't.

What devices computed on their own are parts, and summed. What was communicated,
sums included, may be the whole: refused. Results are compared with the plain
function of the whole arrays, on one device.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config as jax_config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import UNCHECKED
from testing.sharding import shard_map
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
WHOLE_NOT_NAMED_BY_RULE = ('^AssertionError: "may be the whole already.* does '
                           'not match "Custom VJP bwd')
WHOLE_NOT_NAMED = ('^AssertionError: "may be the whole already.* does not '
                   'match "shard_map applied')
ONLY_BWD_RULE = '^ValueError: Custom VJP bwd rule'
NEEDS_REPLICATION = '^ValueError: .*out_specs which require replication'

N = 4
DIM, OUT = 4, 3
W = np.random.RandomState(0).randn(DIM, OUT).astype(np.float32)
X = np.random.RandomState(1).randn(2 * N, DIM).astype(np.float32)


def with_rules(f, fwd, bwd):
  g = jax.custom_vjp(f)
  g.defvjp(fwd, bwd)
  return g


def layer(x, w):
  return jnp.tanh(x @ w)


def _slope(x, w, ct):
  return ct * (1. - layer(x, w) ** 2)


def by_x(x, w, ct):
  return _slope(x, w, ct) @ w.T


def by_w(x, w, ct):
  return x.T @ _slope(x, w, ct)


def gathered(a):
  return lax.all_gather(a, 'x', tiled=True)


def ring_sum(a):
  n = lax.psum(1, 'x')
  total = a
  for _ in range(n - 1):
    a = lax.ppermute(a, 'x', [(i, (i + 1) % n) for i in range(n)])
    total = total + a
  return total


def ring_sum_in_a_loop(a):
  n = lax.psum(1, 'x')
  def step(c, _):
    moved = lax.ppermute(c[0], 'x', [(i, (i + 1) % n) for i in range(n)])
    return (moved, c[1] + moved), None
  return lax.scan(step, (a, a), None, length=n - 1)[0][1]


def layer_of(whole):
  """The layer; `whole` of x, w and ct is the rule's cotangent of w."""
  return with_rules(layer, lambda *args: (layer(*args), args),
                    lambda r, ct: (by_x(*r, ct), whole(*r, ct)))


def saving(keep, whole):
  """The layer; `whole` gets what `keep` of x and w saves, too."""
  return with_rules(
      layer, lambda *args: (layer(*args), (args, keep(*args))),
      lambda r, ct: (by_x(*r[0], ct), whole(*r, ct)))


WHOLE = {
    'gather': layer_of(
        lambda *a: lax.all_gather(by_w(*a), 'x').sum(0)),
    'reduce_scatter_and_gather': layer_of(lambda *a: gathered(
        lax.psum_scatter(by_w(*a), 'x', tiled=True))),
    'ring': layer_of(lambda *a: ring_sum(by_w(*a))),
    'ring_in_a_loop': layer_of(lambda *a: ring_sum_in_a_loop(by_w(*a))),
    'scaled_by_a_sum': layer_of(lambda x, w, ct: by_w(x, w, ct) * (
        lax.psum(ct.sum(), 'x') / (2 * N * OUT))),
    'in_a_jitted_function': layer_of(
        lambda *a: jax.jit(ring_sum)(by_w(*a))),
    'of_gathered_operands': layer_of(
        lambda x, w, ct: by_w(gathered(x), w, gathered(ct))),
    'of_a_gathered_residual': saving(
        lambda x, w: gathered(x),
        lambda args, x, ct: by_w(x, args[1], gathered(ct))),
    'saved_by_the_forward_rule': saving(
        lambda x, w: lax.all_gather(
            by_w(x, w, jnp.ones((len(x), OUT))), 'x').sum(0),
        lambda args, whole, ct: whole * ct[0, 0]),
    'saved_in_a_ring': saving(
        lambda x, w: ring_sum(by_w(x, w, jnp.ones((len(x), OUT)))),
        lambda args, whole, ct: whole * ct[0, 0]),
}


def written_by(write):
  """The layer; its cotangent of w is read from a ref after ``write``."""
  def whole(*args):
    part = by_w(*args)
    ref = jax.new_ref(0. * part)
    write(ref, part)
    return ref[...]
  return layer_of(whole)


def write_whole(ref, part):
  ref[...] = lax.all_gather(part, 'x').sum(0)


def write_in_a_loop(ref, part):
  def step(_, unused):
    write_whole(ref, part)
    return unused
  lax.fori_loop(0, 2, step, None)


def write_in_the_round_after(ref, part):
  last = jax.new_ref(0. * part)
  def step(_, unused):
    ref[...] = last[...]
    write_whole(last, part)
    return unused
  lax.fori_loop(0, 2, step, None)


if hasattr(jax, 'new_ref'):
  WHOLE.update(
      written_to_a_ref=written_by(write_whole),
      written_in_a_jitted_function=written_by(jax.jit(write_whole)),
      written_in_a_loop=written_by(write_in_a_loop),
      written_in_the_round_after=written_by(write_in_the_round_after))

PARTS = {
    'plain': layer_of(by_w),
    'beside_a_gather': with_rules(
        layer, lambda *args: (layer(*args), (args, gathered(args[0]))),
        lambda r, ct: (by_x(*r[0], ct) + 0. * r[1].sum(), by_w(*r[0], ct))),
}

IN_WHICH = [dict(jit=jit, inside=inside)
            for jit in (False, True) for inside in (False, True)]


def gradient(f, jit, inside, mesh=None, by=1):
  """The gradient of the sum of f's results by an argument, w by default."""
  mesh = mesh or make_mesh(N)
  axes = mesh.axis_names
  loss = lambda x, w: lax.psum(jnp.sum(f(x, w)), axes)
  specs, out = (P(axes), P()), P()
  if inside:
    g = shard_map(jax.grad(loss, by), mesh=mesh, in_specs=specs,
                  out_specs=specs[by])
  else:
    g = jax.grad(shard_map(loss, mesh=mesh, in_specs=specs, out_specs=out), by)
  return maybe_jit(jit)(g)(X, W)


WANT = np.asarray(jax.grad(lambda w: jnp.sum(layer(X, w)))(W))


class WholeTest(jtu.JaxTestCase):

  def check_refused(self, f, what='', **where):
    with self.assertRaisesRegex(
        ValueError, f'may be the whole already.*{what}.*pmean.*psum'):
      gradient(f, **where)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  @parameterized.product(what=list(WHOLE))
  def test_refused(self, what):
    self.check_refused(WHOLE[what], jit=True, inside=True)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red({
      '<0.7': '^_RepError: .*NoFail',
      '>=0.7,<0.8.2': WHOLE_NOT_NAMED,
  })
  @parameterized.product(what=['gather', 'ring', 'saved_by_the_forward_rule'],
                         jit=[False, True])
  def test_refused_outside(self, what, jit):
    self.check_refused(WHOLE[what], jit=jit, inside=False)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  @parameterized.parameters('gather', 'ring', 'saved_by_the_forward_rule')
  def test_refused_eagerly(self, what):
    self.check_refused(WHOLE[what], jit=False, inside=True)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  @parameterized.parameters(True, False)
  def test_refused_over_one_of_two_axes(self, jit):
    self.check_refused(WHOLE['gather'], "all_gather .* over 'x' in the rule",
                       jit=jit, inside=True, mesh=make_mesh(2, 2))

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  def test_says_where(self):
    self.check_refused(WHOLE['saved_in_a_ring'],
                       "ppermute .* over 'x' in its forward rule",
                       jit=True, inside=True)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red('^AssertionError: "may be the whole already.* does not match "Scan '
       'carry input and output', bases='<0.8.2')
  def test_in_a_loop(self):
    def looped(f):
      return lambda x, w: lax.scan(
          lambda c, row: (c + f(row, w).sum(), None), jnp.sum(0. * x),
          x.reshape(2, 1, DIM))[0]
    self.check_refused(looped(WHOLE['gather']), jit=True, inside=False)
    got = gradient(looped(PARTS['plain']), jit=True, inside=False)
    np.testing.assert_allclose(got, WANT, rtol=1e-4)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  @red(NEEDS_REPLICATION, bases='<0.8.2')
  @parameterized.parameters(*WHOLE)
  def test_right_on_an_axis_of_size_one(self, what):
    got = gradient(WHOLE[what], True, True, make_mesh(1))
    np.testing.assert_allclose(got, WANT, rtol=1e-4)

  @red(ONLY_BWD_RULE, bases='>=0.8.2')
  def test_not_refused_if_nobody_wants_it(self):
    got = gradient(WHOLE['gather'], True, True, by=0)
    want = jax.grad(lambda x: jnp.sum(layer(x, W)))(X)
    np.testing.assert_allclose(got, want, rtol=1e-4)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  def test_forward_rule_that_cannot_be_traced_again(self):
    # Its value is None by then, and nobody knows what it kept.
    counts = []
    def fwd(x, w):
      counts.append(0)
      if len(counts) > 1:
        raise NotImplementedError
      return layer(x, w), (x * 1., w)
    f = with_rules(layer, fwd, lambda r, ct: (by_x(*r, ct), by_w(*r, ct)))
    self.check_refused(f, "its forward rule can't be traced", jit=True,
                       inside=True)

  @red(WHOLE_NOT_NAMED_BY_RULE, bases='>=0.8.2')
  @red(WHOLE_NOT_NAMED, bases='<0.8.2')
  @parameterized.product(jit=[False, True])
  def test_scatter_to_region(self, jit):
    # Megatron's: each device takes its slice, and the rule gathers.
    def own(w):
      size = w.shape[0] // lax.psum(1, 'x')
      return lax.dynamic_slice_in_dim(w, lax.axis_index('x') * size, size)
    scatter = with_rules(own, lambda w: (own(w), None),
                         lambda _, ct: (gathered(ct),))
    self.check_refused(lambda x, w: x[:, :1] * scatter(w), jit=jit,
                       inside=True)

  @red('^AssertionError: .*may be the whole already.* does not match .* the '
       'bwd rule ', bases='>=0.9.1')
  def test_under_custom_vjp3(self):
    if not hasattr(jax_config, 'custom_vjp3'):
      self.skipTest('the option is newer')
    with jax_config.custom_vjp3(True):
      self.check_refused(layer_of(lambda *a: ring_sum(by_w(*a))),
                         jit=True, inside=True)
      got = gradient(layer_of(by_w), True, True)
    np.testing.assert_allclose(got, WANT, rtol=1e-4)


class WayOutTest(jtu.JaxTestCase):
  """What the error says to write."""

  @parameterized.product(where=IN_WHICH)
  def test_mean_of_the_whole(self, where):
    f = layer_of(lambda *a: lax.pmean(ring_sum(by_w(*a)), 'x'))
    np.testing.assert_allclose(gradient(f, **where), WANT, rtol=1e-4)

  @parameterized.product(where=IN_WHICH)
  def test_gather_that_does_not_vary(self, where):
    if hasattr(lax, 'all_gather_invariant'):
      gather = lambda a: lax.all_gather_invariant(a, 'x', tiled=True)
    elif jax.__version_info__ >= (0, 10):
      gather = lambda a: lax.all_gather(a, 'x', tiled=True, to='invarying')
    else:
      self.skipTest('no such gather')
    f = layer_of(lambda *a: gather(
        lax.psum_scatter(by_w(*a), 'x', tiled=True)))
    np.testing.assert_allclose(gradient(f, **where), WANT, rtol=1e-4)

  @parameterized.product(where=IN_WHICH)
  def test_sum_of_the_part(self, where):
    # Of what was gathered, each device takes its own.
    def part(x, w, ct):
      own = lax.axis_index('x') * x.shape[0]
      ct = lax.dynamic_slice_in_dim(gathered(ct), own, x.shape[0])
      return lax.psum(by_w(x, w, ct), 'x')
    np.testing.assert_allclose(gradient(layer_of(part), **where), WANT,
                               rtol=1e-4)


@red(ONLY_BWD_RULE, bases='>=0.8.2')
@red(NEEDS_REPLICATION, bases='<0.8.2')
class PartTest(jtu.JaxTestCase):

  @parameterized.product(what=list(PARTS), jit=[False, True])
  def test_summed_inside(self, what, jit):
    got = gradient(PARTS[what], jit, inside=True)
    np.testing.assert_allclose(got, WANT, rtol=1e-4)

  @red({
      '<0.7': '^_RepError: .*NoFail',
      '>=0.7,<0.8.2': NEEDS_REPLICATION,
  })
  @parameterized.product(what=list(PARTS), jit=[False, True])
  def test_summed_outside(self, what, jit):
    got = gradient(PARTS[what], jit, inside=False)
    np.testing.assert_allclose(got, WANT, rtol=1e-4)

  def test_summed_over_two_axes(self):
    got = gradient(PARTS['plain'], True, True, make_mesh(2, 2))
    np.testing.assert_allclose(got, WANT, rtol=1e-4)

  def test_reduce_scatter_is_a_sum(self):
    # Sequence parallelism with a scale: each device has a part of the rows.
    scaled = lambda x, w: gathered(x * w[None, :, 0])
    def bwd(r, ct):
      (x, w), ct = r, lax.psum_scatter(ct, 'x', tiled=True)
      by_scale = jnp.sum(ct * x, 0)[:, None]
      return ct * w[None, :, 0], jnp.pad(by_scale, ((0, 0), (0, OUT - 1)))
    f = with_rules(scaled, lambda *args: (scaled(*args), args), bwd)
    rows = np.arange(1., 2 * N + 1, dtype=np.float32)[:, None]
    got = gradient(lambda x, w: f(x, w) * rows, True, True)
    want = np.zeros_like(W)
    want[:, 0] = N * (rows * X).sum(0)
    np.testing.assert_allclose(got, want, rtol=1e-4)

  def test_shard_of_a_parameter_along_another_axis(self):
    # Sharded over 'y', where the rule communicates, replicated over 'x'.
    whole = lambda w: lax.all_gather(w, 'y', tiled=True)
    f = with_rules(
        lambda x, w: layer(x, whole(w)),
        lambda x, w: (layer(x, whole(w)), (x, w)),
        lambda r, ct: (by_x(r[0], whole(r[1]), ct), lax.psum_scatter(
            by_w(r[0], whole(r[1]), ct), 'y', tiled=True)))
    g = shard_map(
        jax.grad(lambda x, w: lax.psum(jnp.sum(f(x, w)), ('x', 'y')), 1),
        mesh=make_mesh(2, 2), in_specs=(P(('x', 'y')), P('y')),
        out_specs=P('y'))
    np.testing.assert_allclose(jax.jit(g)(X, W), WANT, rtol=1e-4)

  def test_of_operands_that_were_gathered_before(self):
    f = lambda x, w: PARTS['plain'](gathered(x), w) / N
    np.testing.assert_allclose(gradient(f, True, True), WANT, rtol=1e-4)


def identity(bwd, keep=lambda x: None):
  return with_rules(lambda x: x, lambda x: (x, keep(x)), lambda r, ct: (
      bwd(r, ct),))


def fsdp(x, w):
  """The parameter is sharded, and gathered again on the way back."""
  f = with_rules(
      lambda x, w: layer(x, gathered(w)),
      lambda x, w: (layer(x, gathered(w)), (x, w)),
      lambda r, ct: (by_x(r[0], gathered(r[1]), ct), lax.psum_scatter(
          by_w(r[0], gathered(r[1]), ct), 'x', tiled=True)))
  return f(x, w)


def gather_rows(x, w):
  f = with_rules(gathered, lambda x: (gathered(x), None),
                 lambda _, ct: (lax.psum_scatter(ct, 'x', tiled=True),))
  return layer(f(x), gathered(w)) / N


def scatter_rows(x, w):
  scatter = lambda a: lax.psum_scatter(a, 'x', tiled=True)
  f = with_rules(scatter, lambda a: (scatter(a), None),
                 lambda _, ct: (gathered(ct),))
  return f(layer(gathered(x), gathered(w)) / N)


def straight_through(x, w):
  f = with_rules(lambda w: jnp.round(w), lambda w: (jnp.round(w), None),
                 lambda _, ct: (ct,))
  return x @ f(gathered(w))


def clipped(x, w):
  f = identity(lambda _, ct: jnp.clip(ct, -.5, .5))
  return layer(f(x), gathered(f(w)))


def clipped_by_norm(x, w):
  def clip(_, ct):
    norm = jnp.sqrt(lax.psum(jnp.sum(ct ** 2), 'x'))
    return ct / jnp.maximum(1., norm)
  return layer(x, gathered(identity(clip)(w)))


def reversible(x, w):
  """Inputs are computed from the result, and the step is differentiated."""
  step = lambda a, b, w: (a + jnp.tanh(b @ w), b)
  back = lambda y, b, w: (y - jnp.tanh(b @ w), b)
  f = with_rules(step, lambda *args: (step(*args), (*step(*args), args[2])),
                 lambda r, ct: jax.vjp(step, *back(*r), r[2])[1](ct))
  w = gathered(w)
  return f(x[:, :OUT], x, w)[0]


def implicit(x, w):
  """The fixed point of a contraction, by the implicit function theorem."""
  step = lambda z, x, w: .3 * jnp.tanh(z @ w.T @ w / 9.) + x
  def solve(x, w):
    return lax.fori_loop(0, 30, lambda _, z: step(z, x, w), x)
  def bwd(r, ct):
    z, x, w = r
    pull = jax.vjp(lambda z: step(z, x, w), z)[1]
    ct = lax.fori_loop(0, 30, lambda _, u: ct + pull(u)[0], ct)
    return jax.vjp(lambda x, w: step(z, x, w), x, w)[1](ct)
  f = with_rules(solve, lambda x, w: (solve(x, w), (solve(x, w), x, w)), bwd)
  return f(x, gathered(w).T)


def ring_attention(x, w):
  """Without a softmax: keys and values go around, and their cotangents."""
  n = 4
  turn = lambda *a: [lax.ppermute(
      b, 'x', [(i, (i + 1) % n) for i in range(n)]) for b in a]
  def attend(q, k, v):
    out = 0. * q
    for _ in range(n):
      out = out + (q @ k.T) @ v
      k, v = turn(k, v)
    return out
  def bwd(r, ct):
    q, k, v = r
    dq, dk, dv = 0. * q, 0. * k, 0. * v
    for _ in range(n):
      dq += (ct @ v.T) @ k
      dk, dv = dk + (ct @ v.T).T @ q, dv + (q @ k.T).T @ ct
      k, v, dk, dv = turn(k, v, dk, dv)
    return dq, dk, dv
  f = with_rules(attend, lambda *a: (attend(*a), a), bwd)
  return f(x, .1 * x, x * gathered(w)[None, :, 0])


def all_to_all(x, w):
  move = lambda a: lax.all_to_all(a, 'x', 1, 0, tiled=True)
  back = lambda a: lax.all_to_all(a, 'x', 0, 1, tiled=True)
  f = with_rules(move, lambda x: (move(x), None), lambda _, ct: (back(ct),))
  return jnp.tanh(f(x)) * w[0, 0]


def reversed_gradient(x, w):
  return layer(x, gathered(identity(lambda _, ct: -ct)(w)))


def rescaled(x, w):
  f = with_rules(lambda w, s: w, lambda w, s: (w, s),
                 lambda s, ct: (ct * s, None))
  return layer(x, gathered(f(w, jnp.float32(8.))))


PEOPLES = [fsdp, gather_rows, scatter_rows, straight_through, clipped,
           clipped_by_norm, reversible, implicit, ring_attention,
           all_to_all, reversed_gradient, rescaled]


class PeoplesRulesTest(jtu.JaxTestCase):
  """Rules as libraries and people write them: their arguments vary.

  Nothing changes: what they give is what the same rules give without the check.
  """

  @parameterized.product(f=PEOPLES, where=[IN_WHICH[1], IN_WHICH[2]])
  def test_as_without_the_check(self, f, where):
    mesh, spec = make_mesh(N), P('x')
    def run(**options):
      value = lambda x, w: jnp.sum(f(x, w) ** 2)
      if where['inside']:
        def of_each(x, w):  # with a cotangent that 0.6.0 takes
          y, pull = jax.vjp(value, x, w)
          return pull(0. * y + 1.)
        g = shard_map(of_each, mesh=mesh, in_specs=(spec, spec),
                      out_specs=(spec, spec), **options)
      else:
        total = shard_map(lambda x, w: value(x, w)[None], mesh=mesh,
                          in_specs=(spec, spec), out_specs=spec, **options)
        g = jax.grad(lambda x, w: total(x, w).sum(), (0, 1))
      return maybe_jit(where['jit'])(g)(X, W)
    got, want = run(), run(**UNCHECKED)
    for a, b in zip(got, want):
      self.assertTrue(np.any(b))
      np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
