# SPDX-License-Identifier: Apache-2.0
"""Makes random programs from tables of operations, collectives and carries."""
import random

import jax
from varying.testing.fuzz_program import ALL
from varying.testing.fuzz_program import AXES
from varying.testing.fuzz_program import Block
from varying.testing.fuzz_program import Branch
from varying.testing.fuzz_program import CALLS
from varying.testing.fuzz_program import CLOSED_CALLS
from varying.testing.fuzz_program import Call
from varying.testing.fuzz_program import FORWARD_CALLS
from varying.testing.fuzz_program import GRADIENTS
from varying.testing.fuzz_program import Gradient
from varying.testing.fuzz_program import INPUTS
from varying.testing.fuzz_program import Loop
from varying.testing.fuzz_program import MEET
from varying.testing.fuzz_program import NONE
from varying.testing.fuzz_program import ONES
from varying.testing.fuzz_program import OPAQUE_CALLS
from varying.testing.fuzz_program import Op
from varying.testing.fuzz_program import PassedBranch
from varying.testing.fuzz_program import REF_CALLS
from varying.testing.fuzz_program import RefCall
from varying.testing.fuzz_program import RefLoop
from varying.testing.fuzz_program import WIDER_CALLS
from varying.testing.fuzz_program import union
from varying.testing.fuzz_ways import REMAT_WAYS
from varying.testing.fuzz_ways import SAME
from varying.testing.fuzz_ways import WAYS


# What an operation can be. Those of a name alone ...
SMOOTH = [
    'jnp.sin({0}) + {1}', 'jnp.tanh({0} * {1})', '{0} * .5 - {1}',
    'jnp.where({0} > {1}, {0}, jnp.cos({1}))', 'jnp.cumsum({0}) * .3',
    'jnp.full(3, .7) * {0}', 'jnp.full(3, .3)', 'jax.jit(jnp.exp)(-{0}**2)',
    'jax.checkpoint(lambda u: jnp.sin(u) * {1})({0})',
    'lax.stop_gradient({0}) * {1}', '{0}[::-1] / (1. + {1}**2)',
    'lax.dynamic_slice({0}, (jnp.argmax({1}) // 2,), (2,)).sum() * {1}',
    'lax.dynamic_update_slice({0}, {1}[:1], (jnp.argmin({0}),))',
    '{0}[jnp.argsort({1})]', '{0}.at[jnp.argmax({1})].add(.5)',
    '{0}.at[jnp.argmin({1})].set({1}[0])', 'jnp.sort({0}) * .5 + {1}',
    'jnp.einsum("i,ij->j", {0}, jnp.outer({1}, {1})) * .2',
    'jnp.dot({0}, {1}) * jnp.tanh({1})', 'jax.nn.softmax({0}) - {1}',
    'lax.optimization_barrier(({0}, {1}))[0] * {1}',
    'lax.associative_scan(lambda u, v: u * .5 + v, {0})',
    'lax.map(lambda u: jnp.sin(u) * {1}[0], {0})',
    'lax.map(lambda u: u * {1}[1], {0}, batch_size=2)',
    'jnp.linalg.solve(jnp.eye(3) * 2. + jnp.outer({0}, {0}), {1})',
    'jnp.linalg.inv(jnp.eye(3) * 3. + jnp.outer({0}, {0})) @ {1}',
    'jnp.concatenate([{0}[1:], {1}[:1]])', 'jnp.clip({0}, {1}[0], 2.)',
    'jnp.stack([{0}, {1}]).T.ravel()[1:4]', 'lax.top_k({0}, 3)[0] * {1}',
    'jax.nn.one_hot(jnp.argmax({0}), 3) * {1}',
    'jnp.convolve({0}, {1}, "same")',
    'jnp.fft.irfft(jnp.fft.rfft({0}), 3)', 'lax.cumprod(jnp.cos({0}))',
    'jax.nn.relu({0}) + jax.nn.gelu({1})', 'jnp.logaddexp({0}, {1})',
    'jnp.piecewise({0}, [{0} < 0., {0} > .5], [jnp.sin, 1., lambda u: u * .5])',
    'lax.select_n({0} > .1, {0}, {1})', 'lax.platform_dependent({0}, '
    'cpu=lambda u: u * .5, default=lambda u: u * .5)',
    'jnp.interp({0}, jnp.linspace(-2., 2., 3), {1})',
    '{0}.astype(jnp.bfloat16).astype("f") * 0. + {0}',
    'jnp.real({0} * (1. + 2.j)) + jnp.imag({1} * 1.j)',
    'jax.vmap(lambda u: u * {1})({0}).sum(0)',
    'jax.tree_util.tree_map(lambda u: u * .5, dict(u={0}))["u"]',
    'jnp.apply_along_axis(lambda u: u * .5, 0, {0})', 'jnp.linalg.norm({0} + '
    '.1) * {1}', 'lax.reduce({0}, jnp.float32(0), lax.add, (0,)) * {1}',
    'lax.reduce_window({0}, 0., lax.add, (2,), (1,), "SAME") * .5',
    'jnp.array([{0}[0], 1., {1}[0]])', 'lax.fori_loop(0, 2, lambda i, u: '
    'u * {1}, {0})', 'jnp.vectorize(lambda u: u * {1}[0])({0})',
    'jnp.linalg.cholesky(jnp.eye(3) * 2. + jnp.outer({0}, {0})) @ {1}',
    'jax.scipy.linalg.solve_triangular(jnp.eye(3) * 2. + jnp.tril(jnp.outer('
    '{0}, {1}), -1), {1}, lower=True)', 'jnp.polyval({0}, {1}) * .3',
    'jax.scipy.special.erf({0}) + jax.scipy.special.expit({1})',
    'jnp.roll({0}, 1) * {1}', 'jnp.gradient({0}) + {1}',
    'lax.conv_general_dilated({0}[None, None], {1}[None, None, :2], (1,), '
    '"SAME")[0, 0]', 'jax.image.resize({0}, (6,), "linear")[::2] * {1}',
    'lax.scan(lambda c, u: (c * .5 + u, c), {0}[0], {1})[1]',
    'lax.sort(({0}, {1}), num_keys=1)[1]', 'lax.cumlogsumexp({0}) * {1}',
    'jnp.max({0}) + jnp.min({1}) * jnp.full(3, .5)',
    'lax.custom_root(lambda u: u**3 + u - {0}, {1} * 0., lambda f, u: '
    'lax.fori_loop(0, 9, lambda i, u: u - f(u) / (3 * u**2 + 1.), u), '
    'lambda g, y: y / g(jnp.ones(3)))',
    'lax.custom_linear_solve(lambda u: u * (2. + {0}**2), {1}, lambda f, u: '
    'u / f(jnp.ones(3)), symmetric=True)',
    'jax.scipy.sparse.linalg.cg(lambda u: u * (2. + {0}**2), {1})[0]',
    'jax.scipy.special.gammainc(jnp.full(3, 1.5), {0}**2 + .5) * {1}',
    'jax.nn.dot_product_attention({0}[:, None, None], {1}[:, None, None], '
    '{0}[:, None, None])[:, 0, 0]',
    'along(jnp.stack([{0}, {1}])).sum(0) * .5',
    'jnp.cos(along(jnp.outer(jnp.ones(4), {0}))).mean(0) * {1}',
]
# ... that have no gradient, or one that isn't smooth ...
ROUGH = [
    'jax.random.uniform(jax.random.fold_in(jax.random.key(0), '
    'jnp.argmax({0})), (3,)) * {1}',
    'jax.random.normal(jax.random.PRNGKey(jnp.argmin({0})), (3,))',
    'jax.random.permutation(jax.random.key(5), {0})',
    'jax.random.choice(jax.random.key(3), {0}, (3,))',
    'jax.random.randint(jax.random.split(jax.random.key(jnp.argmax({0})))[1], '
    '(3,), 0, 5) * .1', 'jax.random.truncated_normal(jax.random.key(4), {0}, '
    '{0} + 1.)',
    'jnp.searchsorted(jnp.sort({0}), {1}) * .1',
    'jnp.digitize({0}, jnp.linspace(-1., 1., 4)) * .2',
    'jnp.histogram({0}, 3)[0] * .1', 'jnp.round({0} * 4.) % 3.',
    '({0} * 8).astype("i") // 3 * .2', 'jnp.bincount(({0} > {1}).astype("i"), '
    'length=3) * .2', 'jnp.unique({0}, size=3)',
    'jnp.median({0}) * jnp.sign({1})', 'jnp.percentile({0}, 30.) * {1}',
    'jax.lax.population_count(({0} > 0.).astype("i")) * {1}',
    'jnp.nonzero({0} > 0., size=3)[0] * .3', 'jnp.argsort({0} * {1}) * .3',
    'jax.pure_callback(lambda u, v: (u * v).astype("f"), jax.ShapeDtypeStruct('
    '(3,), "float32"), {0}, {1}, vmap_method="sequential")',
    'lax.while_loop(lambda u: jnp.any(u < 1.), lambda u: u + 1., {0})',
    'lax.fori_loop(0, jnp.argmax({1}), lambda i, u: u * .5 + i, {0})',
    'jnp.linalg.eigh(jnp.outer({0}, {0}) + jnp.diag({1}))[0]',
    'jnp.linalg.qr(jnp.outer({0}, {1}) + jnp.eye(3))[1][0]',
    'jax.random.categorical(jax.random.key(2), {0}) * {1}',
    'linear(lambda r, u: jnp.sin(r) * u, lambda r, t: jnp.sin(r) * t, {0}, '
    '{1})', 'jax.random.poisson(jax.random.key(3), {0}**2, (3,)) * {1}',
    'lax.approx_max_k({0}, 2)[0].sum() * {1}', 'jnp.lexsort(({0}, {1})) * .2',
]
if (0, 6) <= jax.__version_info__ < (0, 7):
  # Its XLA aborts ("Check failed: !IsManual()"), check or no check, on
  # lax.switch(i, [qr, jnp.sin, jnp.cos], jnp.linalg.eigh(...)[0]).
  ROUGH = [template for template in ROUGH if 'linalg.qr' not in template]


def collectives(axis, size):
  """(template, axes added, axes removed, whether all devices must meet)."""
  one = frozenset([axis])
  if jax.__version_info__ >= (0, 10):
    tiled = [(f'lax.all_to_all(jnp.stack([meet({{0}})] * {size}), {axis!r}, 0, '
              '1, tiled=True)[0, -3:] * .3', one, NONE, False)]
  else:  # no vmap of one that is tiled along another dimension
    tiled = []
  ring = [(i, (i + 1) % size) for i in range(size)]
  return [
      (f'lax.psum(meet({{0}}), {axis!r}) * .4', NONE, one, False),
      (f'lax.pmean(meet({{0}}), {axis!r})', NONE, one, False),
      (f'lax.psum(meet(jnp.stack([{{0}}, {{0}} * .5])), {axis!r})[0] * .3',
       NONE, one, False),
      (f'lax.all_gather(meet({{0}}), {axis!r}).sum(0) * .4', one, NONE, False),
      (f'lax.all_gather(meet({{0}}), {axis!r}, tiled=True)[-3:] * .4', one,
       NONE, False),
      # Untiled along the first dimension, vmap of it fails in 0.12.
      (f'lax.psum_scatter(jnp.stack([meet({{0}})] * {size}, 1), {axis!r}, '
       'scatter_dimension=1) * .3', one, NONE, False),
      (f'lax.all_to_all(jnp.stack([meet({{0}})] * {size}), {axis!r}, 0, 0)'
       '.sum(0) * .3', one, NONE, False),
      (f'lax.all_gather(meet({{0}}), {axis!r}, axis=1)[:, -1] * .4', one, NONE,
       False),
      (f'lax.psum_scatter(jnp.tile(meet({{0}}), {size}), {axis!r}, tiled=True)'
       ' * .3', one, NONE, False),
      (f'lax.all_to_all(jnp.stack([meet({{0}})] * {size}), {axis!r}, 0, 1)'
       '.sum(1) * .3', one, NONE, False),
      (f'lax.pswapaxes(jnp.stack([meet({{0}})] * {size}, 1), {axis!r}, 1)'
       '.sum(1) * .3', one, NONE, False),
      (f'sum(lax.psum((meet({{0}}), meet({{0}})**2), {axis!r})) * .2', NONE,
       one, False),
      (f'lax.psum((meet({{0}}) > 0.).astype("i"), {axis!r}) * .2', NONE, one,
       False),
      (f'lax.ppermute(meet({{0}}), {axis!r}, {ring})', one, NONE, True),
      (f'lax.pshuffle(meet({{0}}), {axis!r}, {[j for _, j in ring]})', one,
       NONE, True),
      (f'vary({{0}}) * lax.axis_index({axis!r})', ALL, NONE, False),
      *tiled,
      (f'lax.custom_linear_solve(lambda u: u * lax.psum(meet(1. + {{0}}**2), '
       f'{axis!r}), lax.psum(meet({{0}}), {axis!r}), lambda f, u: u / '
       'f(jnp.ones(3)), symmetric=True)', NONE, one, False),
  ]


# Of what is left unreduced over an axis: parts of one sum, added up.
UNREDUCED = ('lax.psum(unreduced(meet({{0}}), {0!r}) + unreduced(meet({{0}} * '
             '.5), {0!r}), {0!r}) * .3')
# Without a derivative of their own.
EXTREMES = [
    'linear(lambda r, u: lax.psum(meet(r * u), {0!r}) * .3, lambda r, t: r * t '
    '* .3, {{0}}, {{0}})',
    'lax.pmax(meet({{0}}), {0!r})', 'lax.pmin(meet({{0}}), {0!r})']
TOGETHER = ["lax.psum(meet({0}), ('x', 'y')) * .2",
            "lax.pmean(meet({0}), ('y', 'x'))"]
TOGETHER_EXTREMES = ["lax.pmax(meet({0}), ('x', 'y'))",
                     "lax.pmin(meet({0}), ('x', 'y'))"]

# Carries that aren't vectors: how they start, how they go on given a vector,
# and a vector made of them. `{0}` is what is carried.
CARRIES = {
    'counter': ('0', '{0} + 1', '{0} * jnp.full(3, .1)'),
    'weak': ('1.', '{0} * .5 + jnp.sum({1}) * .1', '{0} * jnp.full(3, .2)'),
    'weak_int': ('0', '{0} + jnp.argmax({1})', '{0} * jnp.full(3, .1)'),
    'scalar': ('jnp.float32(0)', '{0} * .5 + {1}[0]', '{0} * jnp.full(3, .3)'),
    'int_scalar': ('jnp.int32(0)', '{0} + jnp.argmax({1})',
                   '{0} * jnp.full(3, .1)'),
    'bool': ('True', '{0} & ({1}[0] > -.5)',
             'jnp.where({0}, jnp.full(3, .2), -.1)'),
    'int': ('jnp.zeros(3, "i")', '{0} + ({1} > 0.)', '{0} * .1'),
    'bytes': ('jnp.ones(2, "uint8")', '{0} + ({1}[:2] > 0.).astype("uint8")',
              'jnp.full(3, .1) * {0}[0]'),
    'key': ('jax.random.key(7)', 'jax.random.fold_in({0}, jnp.argmax({1}))',
            'jax.random.uniform({0}, (3,))'),
    'keys': ('jax.random.split(jax.random.key(7), 2)',
             'jax.random.split({0}[jnp.argmax({1}) % 2], 2)',
             'jax.random.normal({0}[1], (3,)) * .3'),
    'split': ('jax.random.key(1)', 'jax.random.split({0})[0]',
              'jax.random.normal({0}, (3,)) * .2'),
    'half': ('jnp.zeros(3, jnp.bfloat16)', '{1}.astype(jnp.bfloat16) * 0 + {0}',
             '{0}.astype("f")'),
    'complex': ('jnp.zeros(3, "complex64")', '{0} * .5j + {1}',
                'jnp.real({0}) + jnp.imag({0})'),
    'tree': ('dict(u=jnp.zeros(3), n=(0, ()))',
             'dict(u={0}["u"] + {1}, n=({0}["n"][0] + 1, ()))',
             '{0}["u"] * .5'),
    'empty': ('()', '()', 'jnp.full(3, .1)'),
    'nothing': ('jnp.zeros((0, 3))', '{0} + {1}', 'jnp.sum({0}, 0)'),
}
FREE_OF_VECTORS = ('counter', 'split', 'empty')  # how they go on reads none


class Generator:
  """Makes programs; the same ones for the same seed.

  ``env`` bounds what a name varies along from above: a carry may come to vary
  along all axes. What is met under a predicate may diverge along its bound,
  and no collective over such an axis is put there.
  """

  def __init__(self, seed, control_flow=True, differentiable=False,
               wide=True, statements=6, sizes=(2, 2), forward=False,
               refs=False, depth=3, most=40, callbacks=True,
               reduces=False, unreduces=False, passes=False):
    self.rng = random.Random(seed)
    self.callbacks = callbacks
    self.refs = refs  # outside of what is differentiated
    self.depth = depth
    self.most = most  # names, from which on no more functions are made
    self.control_flow = control_flow
    self.differentiable = differentiable
    self.wide = wide
    self.size = statements
    self.sizes = dict(zip(AXES, sizes))
    self.ones = frozenset(a for a, n in self.sizes.items() if n == 1)
    self.count = 0
    self.forward = forward  # in what is differentiated forward
    self.local = False  # in what can't know its device
    # With branches by an argument that agrees; a gradient taken in the same
    # shard_map is refused.
    self.passes = passes
    self.plain = passes  # without gradients
    self.reduces = reduces  # reads a value that is reduced over both axes
    self.reduced = []  # its name
    self.unreduces = unreduces  # leaves values unreduced over an axis
    self.other = set()  # names that aren't vectors

  def name(self):
    self.count += 1
    return f't{self.count}'

  def program(self):
    env = dict(INPUTS)
    env.update({MEET: NONE, ONES: self.ones})
    before = []
    if self.reduces:
      before = [Op(self.other_name(), 'reduced({0})',
                   [self.rng.choice('wv')])]
      before[0].solve(env)
      self.reduced = before[0].outs
    body = before + self.statements(env, self.size, 0, NONE)
    made = [n for s in body for n in s.outs if n not in self.other]
    results = made[-1:] + self.rng.sample(made, min(2, len(made)))
    return Block(list(INPUTS), body, list(dict.fromkeys(results)))

  def statements(self, env, count, depth, divergent):
    return [s for _ in range(count)
            for s in self.statement(env, depth, divergent)]

  def statement(self, env, depth, divergent):
    kinds = ['op'] * 4 + ['collective'] * 2 + ['index']
    if self.count > self.most:
      depth = self.depth
    if self.wide and depth < self.depth:
      kinds += ['call'] * 3 + ['gradient'] * (0 if self.plain else 2)
    if self.control_flow and depth < self.depth:
      kinds += ['branch'] * 3 + ['loop'] * 3
      if self.passes:
        kinds += ['passed_branch'] * 4
      if self.refs and not self.differentiable:
        kinds += ['ref_loop'] * 2 + ['ref_call'] * 2
    made = getattr(self, self.rng.choice(kinds))(env, depth, divergent)
    return made if isinstance(made, list) else [made]

  def pick(self, env, n=1):
    names = [n for n in env
             if n not in (MEET, ONES) and n not in self.other]
    recent = names[-6:]
    return [self.rng.choice(recent if self.rng.random() < .6 else names)
            for _ in range(n)]

  def made(self, template, args, env, adds=NONE, removes=NONE):
    args = [n for i, n in enumerate(args) if f'{{{i}}}' in template]
    s = Op(self.name(), template, args, adds, removes)
    s.solve(env)
    return s

  def op(self, env, depth, divergent):
    templates = SMOOTH if self.wide else SMOOTH[:11]
    if self.wide and not self.differentiable:
      templates = self.rng.choice([templates, [
          t for t in ROUGH if self.callbacks or 'callback' not in t]])
    if self.reduced and self.reduced[0] in env and self.rng.random() < .3:
      return self.made('vary({0}) * {1}', self.reduced + self.pick(env), env,
                       ALL)
    return self.made(self.rng.choice(templates), self.pick(env, 2), env)

  def collective(self, env, depth, divergent):
    axes = [a for a in AXES if a not in divergent]
    if not axes:
      return self.op(env, depth, divergent)
    axis, arg = self.rng.choice(axes), self.pick(env)
    choices = [c[:3] for c in collectives(axis, self.sizes[axis])
               if not divergent or not c[3]]
    if not self.differentiable:
      choices += [(t.format(axis), NONE, frozenset([axis])) for t in EXTREMES]
    if self.unreduces:
      choices += 2 * [(UNREDUCED.format(axis), NONE, frozenset([axis]))]
    if not divergent:
      both = TOGETHER + ([] if self.differentiable else TOGETHER_EXTREMES)
      choices += [(t, NONE, ALL) for t in both]
    template, adds, removes = self.rng.choice(choices)
    return self.made(template, arg, env, adds, removes)

  def index(self, env, depth, divergent):
    axis = self.rng.choice(AXES)
    if self.local:
      return self.op(env, depth, divergent)
    if self.wide and self.rng.random() < .2:
      return self.made(f'jnp.full(3, .1) * lax.psum(1, {axis!r})', [], env)
    template = f'jnp.full(3, .2) * lax.axis_index({axis!r}).astype("f")'
    return self.made(template, [], env, frozenset([axis]))

  def block(self, env, params, bounds, results, depth, divergent, before=()):
    inner = {**env, **dict(zip(params, bounds))}
    for s in before:
      s.solve(inner)
    count = 1 if self.count > self.most else self.rng.choice([1, 1, 2, 3])
    body = [*before, *self.statements(inner, count, depth + 1, divergent)]
    vectors = [n for n in params if n not in self.other]
    made = [n for s in body for n in s.outs if n not in self.other]
    return Block(params, body, [self.rng.choice(made * 3 + vectors)
                                for _ in range(results)])

  def other_name(self):
    name = self.name()
    self.other.add(name)
    return name

  def going_on(self, kind, block, carried):
    """Adds to the block a result that isn't a vector, made from ``carried``."""
    made = [n for s in block.body for n in s.outs if n not in self.other]
    vector = [] if kind in FREE_OF_VECTORS else [self.rng.choice(made)]
    args = [] if kind == 'empty' else [carried, *vector]
    block.body.append(Op(self.other_name(), CARRIES[kind][1], args))
    block.results.append(block.body[-1].out)

  def starting(self, kind):
    return Op(self.other_name(), CARRIES[kind][0], [])

  def used(self, kind, name):
    args = [] if kind == 'empty' else [name]
    return Op(self.name(), CARRIES[kind][2], args)

  def branch(self, env, depth, divergent):
    index, *operands = self.pick(env, 3)
    same, agrees = '', NONE
    if self.wide and self.rng.random() < .4:
      same, agrees = self.same(divergent)
    parted = divergent | (env[index] - agrees - self.ones)
    outs = [self.name() for _ in range(self.rng.randint(1, 2))]
    count = self.rng.choice([2, 2, 3, 4])
    kind = 'switch' if count > 2 else self.rng.choice(
        ['cond', 'cond', 'key' if self.wide else 'cond', 'switch'])
    blocks = []
    for _ in range(count):
      params = [self.name(), self.name()]
      blocks.append(self.block(
          env, params, [env[o] for o in operands], len(outs), depth, parted))
    s = Branch(outs, index, operands, blocks, kind, same, agrees)
    before = after = []
    if self.wide and self.rng.random() < .4:
      extra = self.rng.choice(list(CARRIES))
      before = [self.starting(extra)]
      before[0].solve(env)
      for b in blocks:
        if self.rng.random() < .7:
          self.going_on(extra, b, before[0].out)
        else:
          b.results.append(before[0].out)
      s.outs.append(self.other_name())
      after = [self.used(extra, s.outs[-1])]
    made = [*before, s, *after]
    for statement in made[len(before):]:
      statement.solve(env)
    return made

  def same(self, divergent):
    """The text that makes a name the same along an axis, and that axis."""
    axes = [a for a in AXES if a not in divergent]
    if not axes:
      return '', NONE
    axis = self.rng.choice(axes)
    return self.rng.choice(SAME).format(axis), frozenset([axis])

  def passed_branch(self, env, depth, divergent):
    index, operand = self.pick(env, 2)
    same, agrees = self.same(divergent)
    if not same:
      return self.branch(env, depth, divergent)
    calls = [*CALLS, *WIDER_CALLS]
    parted = divergent | (env[index] - agrees - self.ones)
    if self.differentiable:
      # A backward pass from outside is given the predicate without the fact.
      parted = ALL
    elif not self.forward:
      calls += [*CLOSED_CALLS, *FORWARD_CALLS]
    call = self.rng.choice(calls)
    around = {MEET: NONE, ONES: self.ones} if call in CLOSED_CALLS else env
    blocks = [self.restricted(
        self.block, around, [self.name()], [ALL], 1, depth, parted,
        differentiable=call in CLOSED_CALLS or call in FORWARD_CALLS,
        local='vjp' in call, forward='jvp' in call or call in FORWARD_CALLS)
              for _ in range(2)]
    s = PassedBranch([self.name()], index, [operand], blocks, self.rng.choice(
        ['cond', 'cond', 'key', 'switch']), same, agrees, call)
    s.solve(env)
    return s

  def loop(self, env, depth, divergent):
    kinds = ['scan', 'scan_xs', 'fori', 'scan_length', 'scan_unrolled',
             'scan_never']
    if not self.differentiable:
      kinds += ['while', 'while', 'fori_dynamic', 'fori_from', 'while_never',
                'while_both']
      if not divergent:
        kinds += ['while_pmax']
      if 'x' not in divergent:
        kinds += ['while_psum', 'while_same', 'fori_same']
    kind = self.rng.choice(kinds)
    *inits, over = self.pick(env, 3)
    if kind in ('while', 'while_never', 'while_both'):
      divergent = ALL - self.ones
    elif kind in ('while_psum', 'while_same'):
      # Devices along 'y' diverge, and so they do for the predicate's psum.
      divergent = divergent | ({'y'} - self.ones)
    elif kind in ('fori_dynamic', 'fori_from'):
      divergent = divergent | (env[over] - self.ones)
    elif kind == 'fori_same':
      divergent = divergent | (env[over] - {'x'} - self.ones)
    params, bounds, before, use = [self.name(), self.name()], [ALL, ALL], [], []
    extra = None
    if self.wide and self.rng.random() < .5:
      extra = self.rng.choice(list(CARRIES))
      before = [self.starting(extra)]
      before[0].solve(env)
      inits.append(before[0].out)
      params.append(self.other_name())
      bounds.append(ALL)
      use = [self.used(extra, params[-1])]
    elif self.wide and not divergent and not self.forward and (
        not self.plain and self.rng.random() < .3):
      use = self.descent(env, params[0], inits[0], over)
    scanned = kind.startswith('scan')
    block = self.block(env, params, bounds, 2, depth, divergent, use)
    outs = [self.name(), self.name()]
    after = []
    if extra:
      if self.rng.random() < .9:
        self.going_on(extra, block, params[-1])
      else:
        block.results.append(params[-1])
      outs.append(self.other_name())
      after = [self.used(extra, outs[-1])]
    elif use:
      block.results[0] = use[-1].out
    if scanned:
      made = [n for s in block.body for n in s.outs if n not in self.other]
      block.results.append(self.rng.choice(made))
      outs.append(self.name())
    s = Loop(outs, kind, inits, block, over)
    for statement in [s, *after]:
      statement.solve(env)
    return [*before, s, *after]

  def ref_loop(self, env, depth, divergent):
    kind = self.rng.choice(['ref_fori', 'ref_scan', 'ref_while'])
    *inits, over = self.pick(env, 3)
    if kind == 'ref_while':
      divergent = ALL - self.ones
    params, use = [self.name(), self.name()], []
    if not divergent and not self.plain and self.rng.random() < .4:
      use = self.descent(env, params[0], inits[0], over)
    block = self.block(env, params, [ALL, ALL], 2, depth, divergent, use)
    if use:
      block.results[0] = use[-1].out
    s = RefLoop([self.name(), self.name()], kind, inits, block, over)
    s.solve(env)
    return s

  def ref_call(self, env, depth, divergent):
    inits = self.pick(env, 2)
    params = [self.name(), self.name()]
    block = self.restricted(self.block, env, params, [ALL, ALL], 2, depth,
                            divergent, plain=True)
    s = RefCall([self.name(), self.name()], self.rng.choice(list(REF_CALLS)),
                inits, block)
    s.solve(env)
    return s

  def descent(self, env, param, init, over):
    """A step along the gradient by what is carried, and what may vary.

    The function that is differentiated may cast it by hand, along an axis that
    what the loop begins with, or is over, doesn't vary along.
    """
    left = sorted(ALL - env[init] - env[over])
    first, second, loss = self.name(), self.name(), self.name()
    cast = Op(self.name(), '{0} * 1.', [first])
    if left and self.rng.random() < .5:
      axis = self.rng.choice(left)
      cast = Op(cast.out, f'by_hand({{0}}, {axis!r})', [first],
                frozenset([axis]))
    body = [cast, Op(loss, '{0}**2 * jnp.cos({1})', [cast.out, second])]
    other = self.pick(env)[0]
    slope = Gradient([self.name()], 'grad', [param, other],
                     Block([first, second], body, [loss]))
    return [slope, Op(self.name(), '{0} - .1 * {1} + .2 * {2}',
                      [param, slope.outs[0], self.pick(env)[0]])]

  def restricted(self, method, *args, **limits):
    before = {k: getattr(self, k) for k in limits}
    for k, limit in limits.items():
      setattr(self, k, limit or before[k])
    result = method(*args)
    vars(self).update(before)
    return result

  def call(self, env, depth, divergent):
    choices = [CALLS, CALLS, WAYS, WAYS, REMAT_WAYS, CLOSED_CALLS,
               FORWARD_CALLS, WIDER_CALLS]
    if not self.differentiable and not self.forward:
      choices.append(OPAQUE_CALLS)
    calls = self.rng.choice(choices)
    kind = self.rng.choice([k for k in calls
                            if not (self.forward and 'custom_vjp' in k)])
    operands, params = self.pick(env, 2), [self.name(), self.name()]
    closed = calls in (CLOSED_CALLS, OPAQUE_CALLS)
    around = {MEET: NONE, ONES: self.ones} if closed else env
    bound = union(env[o] for o in operands)
    block = self.restricted(
        self.block, around, params, [bound, bound], self.rng.randint(1, 2),
        depth, divergent, plain=calls is WIDER_CALLS,
        differentiable=calls in (CLOSED_CALLS, OPAQUE_CALLS, FORWARD_CALLS),
        local='vjp' in kind, forward='jvp' in kind or calls is FORWARD_CALLS)
    outs = [self.name() for _ in block.results]
    s = Call(outs, kind, operands, block)
    s.solve(env)
    return s

  def gradient(self, env, depth, divergent):
    operands, params = self.pick(env, 2), [self.name(), self.name()]
    kind = self.rng.choice(list(GRADIENTS))
    block = self.restricted(
        self.block, env, params, [ALL, ALL], 1, depth, divergent,
        differentiable=True, forward=kind == 'hvp')
    s = Gradient([self.name()], kind, operands, block)
    env[MEET] = divergent
    s.solve(env)
    return s
