# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Random programs in shard_map, against an emulation without devices (issue 3).

A program is a tree of statements on names: arithmetic, collectives, branches,
loops, transformed functions and gradients, whose bodies capture what is
outside. Most names are vectors of three float32 numbers; others are carried
through loops and branches only (integers, booleans, keys, weak types, empty
trees). Three readings of a program are compared:
  - its source, run in shard_map with the check on;
  - the same source under vmap with axis names: no mesh, no types, true
    derivatives;
  - the rules of issue 3 on the tree, worked out here on their own: along which
    axes each result may vary at most.
A program fails if it is refused, if a type is coarser than the rules, if
devices differ along an axis that the type leaves out, or if a value or a
gradient differs. A collective stands only where all devices meet it.

What depends on the devices is called in the source by three names, so that the
same text means the same in both:
  - ``meet(x)``: x, where devices meet, as a collective's operand;
  - ``vary(x)``: x, cast to vary along all axes;
  - ``total(g, axes)``: a gradient with respect to what doesn't vary along
    ``axes``, summed over them, as shard_map does by itself.

  MEND_FUZZ_PROGRAMS=500 MEND_FUZZ_SEED=1000 pytest shard_map_fuzz_test.py

Without automatic promotion of carries (patches for control flow) the programs
are straight lines; in 0.5.3, they have no transformations of functions.
"""
import dataclasses
import importlib.util
import os
import random
import textwrap

from absl.testing import absltest
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np

jax.config.parse_flags_with_absl()
if hasattr(jtu, 'request_cpu_devices'):
  jtu.request_cpu_devices(8)

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

PROGRAMS = int(os.environ.get('MEND_FUZZ_PROGRAMS', 5))
SEED = int(os.environ.get('MEND_FUZZ_SEED', 0))
CONTROL_FLOW = any(
    importlib.util.find_spec('jax._src.' + name) is not None
    for name in ('varying_flow', 'shard_map_rules'))
if jax.__version_info__ < (0, 6):
  # Its CPU runtime crashes on collectives in nested loops, check on or off.
  os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + (
      ' --xla_cpu_use_thunk_runtime=false')
# Transformations, other carries. 0.6.0 needs the patches for its transposes and
# forward mode as well.
WIDE = jax.__version_info__ >= (0, 10) or (
    importlib.util.find_spec('jax._src.varying_transposes') is not None)
HEADER = 'import jax\nfrom jax import lax\nimport jax.numpy as jnp\n\n'


# What a program is.


AXES = ('x', 'y')
ALL = frozenset(AXES)
INPUTS = {'a': frozenset('x'), 'b': frozenset('y'), 'c': ALL,
          'w': frozenset(), 'v': frozenset()}
MEET = '!'  # in an env: axes along which devices may have parted ways
NONE = frozenset()


def union(sets):
  return NONE.union(*sets)


def tuple_of(names):
  return ', '.join(names) + (',' if len(names) == 1 else '')


def indented(lines):
  return ['  ' + line for line in lines]


@dataclasses.dataclass
class Op:
  """``out = template(args)``; a collective or index changes the axes."""
  out: str
  template: str
  args: list
  adds: frozenset = NONE
  removes: frozenset = NONE

  @property
  def outs(self):
    return [self.out]

  def lines(self):
    return [f'{self.out} = ' + self.template.format(*self.args)]

  def solve(self, env):
    axes = self.adds.union(*(env[a] for a in self.args)) - self.removes
    env[self.out] = axes


@dataclasses.dataclass
class Block:
  """A function that is nested in the program and reads what is around it."""
  params: list
  body: list
  results: list

  def lines(self, name, ignored=()):
    params = ', '.join([*ignored, *self.params])
    text = [line for s in self.body for line in s.lines()]
    text.append('return ' + tuple_of(self.results))
    return [f'def {name}({params}):'] + indented(text)

  def solve(self, env, axes, parted=NONE):
    env = {**env, **dict(zip(self.params, axes))}
    env[MEET] = env.get(MEET, NONE) | parted
    for s in self.body:
      s.solve(env)
    return [env[r] for r in self.results]

  def forwarded(self, operands):
    """For each result, the name outside that it is, if it is one."""
    made = {n for s in self.body for n in s.outs}
    names = dict(zip(self.params, operands))
    return [None if r in made else names.get(r, r) for r in self.results]


@dataclasses.dataclass
class Branch:
  """``cond`` or ``switch`` on a number made from one of the names."""
  outs: list
  index: str
  operands: list
  blocks: list
  kind: str

  def lines(self):
    names = [f'{self.outs[0]}_branch{i}' for i in range(len(self.blocks))]
    text = [line for n, b in zip(names, self.blocks) for line in b.lines(n)]
    operands = ', '.join(self.operands)
    count = len(self.blocks)
    if self.kind == 'cond':
      call = f'lax.cond(jnp.sum({self.index}) > .4, {", ".join(names)}'
    elif self.kind == 'key':
      call = (f'lax.cond(jax.random.bernoulli(jax.random.fold_in('
              f'jax.random.key(1), jnp.argmax({self.index}))), '
              f'{", ".join(names)}')
    else:
      call = (f'lax.switch(jnp.sum({self.index} * 3).astype("i") % {count}, '
              f'[{", ".join(names)}]')
    return text + [f'{tuple_of(self.outs)} = {call}, {operands})']

  def solve(self, env):
    index = env[self.index]
    outs = [b.solve(env, [env[o] for o in self.operands], index)
            for b in self.blocks]
    forwarded = zip(*(b.forwarded(self.operands) for b in self.blocks))
    for name, each, names in zip(self.outs, zip(*outs), forwarded):
      same = names[0] is not None and len(set(names)) == 1
      env[name] = env[names[0]] if same else index.union(*each)


@dataclasses.dataclass
class Loop:
  """A loop with two vectors and perhaps something else as its carries.

  A scan also stacks what its body returns last, and sums that up.
  """
  outs: list
  kind: str
  inits: list
  block: Block
  over: str = ''

  def lines(self):
    name = f'{self.outs[0]}_body'
    init, outs = tuple_of(self.inits), tuple_of(self.outs)
    text = self.block.lines(name)
    if self.kind.startswith('scan'):
      over, options = {
          'scan': (self.over, ''),
          'scan_xs': (self.over, ', reverse=True'),
          'scan_length': ('None', ', length=2'),
          'scan_unrolled': (self.over, ', unroll=2'),
          'scan_never': ('jnp.zeros((0, 2))', ''),
      }[self.kind]
      first = 'c[0] + s' if self.kind == 'scan_xs' else 'c[0]'
      return text + [
          f'def {name}_step(c, s):',
          f'  *c, y = {name}({first}, *c[1:])',
          '  return tuple(c), y',
          f'({tuple_of(self.outs[:-1])}), {self.outs[-1]} = lax.scan('
          f'{name}_step, ({init}), {over}{options})',
          f'{self.outs[-1]} = {self.outs[-1]}.sum(0) * .3']
    call = f'lambda i, c: {name}(*c), ({init})'
    if self.kind == 'fori':
      return text + [f'{outs} = lax.fori_loop(0, 2, {call})']
    if self.kind == 'fori_dynamic':
      return text + [
          f'{outs} = lax.fori_loop(0, 1 + jnp.heaviside('
          f'jnp.sum({self.over}), 0.).astype("i"), {call})']
    if self.kind == 'fori_from':
      return text + [
          f'{outs} = lax.fori_loop(jnp.argmax({self.over}), 2, {call})']
    test = {'while': 'jnp.sum(c[1][0]) < 2.',
            'while_never': 'jnp.sum(c[1][0]) > 1e5',
            'while_both': 'jnp.all(c[1][0] + c[1][1] < 2.)',
            'while_pmax': "lax.pmax(jnp.sum(c[1][0]), ('x', 'y')) < 2.",
            'while_psum': "lax.psum(jnp.sum(c[1][0]), 'x') < 2."}
    return text + [
        f'_, ({outs}) = lax.while_loop(lambda c: (c[0] < 3) & '
        f'({test[self.kind]}), lambda c: (c[0] + 1, {name}(*c[1])), '
        f'(0, ({init})))']

  def solve(self, env):
    carries = [env[i] for i in self.inits]
    changed = [r != p for r, p in zip(self.block.results, self.block.params)]
    stacks = self.kind.startswith('scan')
    while True:
      ins = list(carries)
      predicate = NONE
      if self.kind == 'scan_xs':
        ins[0] = ins[0] | env[self.over]
        changed[0] = True
      elif self.kind in ('fori_dynamic', 'fori_from'):
        predicate = env[self.over]
      elif self.kind in ('while', 'while_never'):
        predicate = carries[0]
      elif self.kind == 'while_both':
        predicate = carries[0] | carries[1]
      elif self.kind == 'while_psum':
        predicate = carries[0] - {'x'}
      outs = self.block.solve(env, ins, predicate)
      new = [c | o | (predicate if ch else NONE)
             for c, o, ch in zip(carries, outs, changed)]
      if new == carries:
        break
      carries = new
    env.update(zip(self.outs, carries + outs[-1:] if stacks else carries))


CALLS = {  # by kind: how to call F with two operands; {p} is where a vmap goes
    'jit': 'jax.jit({f})({0}, {1})',
    'remat': 'jax.checkpoint({f})({0}, {1})',
    'remat_nothing': ('jax.checkpoint({f}, policy=jax.checkpoint_policies.'
                      'nothing_saveable)({0}, {1})'),
    'remat_dots': ('jax.checkpoint({f}, policy=jax.checkpoint_policies.'
                   'dots_saveable)({0}, {1})'),
    'remat_all': ('jax.checkpoint({f}, policy=jax.checkpoint_policies.'
                  'everything_saveable)({0}, {1})'),
    'closure': ('(lambda made: made[0]({0}, *made[1]))(jax.closure_convert('
                'lambda u: {f}(u, {1}), {0}))'),
    'vmap': ('[z.sum(0) for z in jax.vmap({f}, (0, None))('
             'jnp.stack([{0}, {0} * .5]), {1})]'),
    'vmap_both': ('[z[0] - z[1] for z in jax.vmap({f}, (0, 0))('
                  'jnp.stack([{0}, {0} * .5]), jnp.stack([{1}, .3 * {1}]))]'),
    'vmap_out': ('[z[:, 1] for z in jax.vmap({f}, (1, None), 1)('
                 'jnp.stack([{0}, {0} * .5], 1), {1})]'),
    'map': ('[z[0] + z[1] for z in lax.map(lambda u: {f}(u, {1}), '
            'jnp.stack([{0}, {0} * .5]))]'),
    'map_batch': ('[z[0] - z[1] for z in lax.map(lambda u: {f}(u, {1}), '
                  'jnp.stack([{0}, {0} * .5]), batch_size=2)]'),
}
CLOSED_CALLS = {  # of a function that reads nothing but its arguments
    'custom_jvp': ('(lambda g: (g.defjvp(lambda p, t: jax.jvp({f}, p, t)), '
                   'g({0}, {1}))[1])(jax.custom_jvp({f}))'),
    'custom_vjp': ('(lambda g: (g.defvjp(lambda *p: ({f}(*p), p), lambda r, t: '
                   'jax.vjp({f}, *r)[1](t)), g({0}, {1}))[1])'
                   '(jax.custom_vjp({f}))'),
    'custom_vjp_lazy': (
        '(lambda g: (g.defvjp(lambda *p: jax.vjp({f}, *p), '
        'lambda r, t: r(t)), g({0}, {1}))[1])(jax.custom_vjp({f}))'),
}
FORWARD_CALLS = {  # forward derivatives of F, whose operands are alike
    'jvp': ('[z + .5 * t for z, t in zip(*jax.jvp({f}, ({0}, {1}), '
            '({1}, .5 * {0})))]'),
    'jvp_constant': ('[z + .5 * t for z, t in zip(*jax.jvp('
                     'lambda u: {f}(u, {1}), ({0},), (jnp.ones(3),)))]'),
    'linearize': ('(lambda l: [z + t for z, t in zip(l[0], l[1]({0}, {1}))])'
                  '(jax.linearize({f}, {0}, {1}))'),
    'jacfwd': '[z.sum(0) for z in jax.jacfwd(lambda u: {f}(u, {1}))({0})]',
}


@dataclasses.dataclass
class Call:
  """A function under a transformation that leaves types as they are."""
  outs: list
  kind: str
  operands: list
  block: Block

  def lines(self):
    name = f'{self.outs[0]}_fun'
    call = {**CALLS, **CLOSED_CALLS, **FORWARD_CALLS}[self.kind]
    return self.block.lines(name) + [
        f'{tuple_of(self.outs)} = ' + call.format(*self.operands, f=name)]

  def solve(self, env):
    axes = [env[o] for o in self.operands]
    if self.kind == 'jvp':
      axes = [union(axes)] * 2
    env.update(zip(self.outs, self.block.solve(env, axes)))


GRADIENTS = {
    'grad': 'jax.grad(lambda u: jnp.sum({f}(u, {1})[0]))({0})',
    'value_and_grad': ('jax.value_and_grad(lambda u: (jnp.sum({f}(u, {1})[0]), '
                       'u), has_aux=True)({0})[1]'),
    'jit_grad': 'jax.jit(jax.grad(lambda u: jnp.sum({f}(u, {1})[0])))({0})',
    'vjp': 'jax.vjp(lambda u: {f}(u, {1}), {0})[1]((jnp.full(3, .5),))[0]',
    'jacrev': 'jax.jacrev(lambda u: {f}(u, {1})[0])({0}).sum(0)',
    'remat_grad': ('jax.grad(jax.checkpoint(lambda u: jnp.sum('
                   '{f}(u, {1})[0])))({0})'),
    'grad_vmap': ('jax.vmap(jax.grad(lambda u: jnp.sum({f}(u, {1})[0])))('
                  'jnp.stack([{0}, {0} * .5])).sum(0)'),
    'hvp': ('jax.jvp(jax.grad(lambda u: jnp.sum({f}(u, {1})[0])), ({0},), '
            '(jnp.ones(3),))[1]'),
}


@dataclasses.dataclass
class Gradient:
  """The gradient of a function's one result in its first operand.

  It has the type of the operand, and is summed over what the result varies
  along besides. Where devices have parted ways, they can't sum, and the
  operand is made to vary first.
  """
  outs: list
  kind: str
  operands: list
  block: Block
  sums: frozenset = NONE
  varied: bool = False

  def lines(self):
    name = f'{self.outs[0]}_fun'
    first, second = self.operands
    if self.varied:
      first = f'vary({first})'
    gradient = GRADIENTS[self.kind].format(first, second, f=name)
    return self.block.lines(name) + [
        f'{self.outs[0]} = total({gradient}, {tuple(sorted(self.sums))})']

  def solve(self, env):
    first = ALL if self.varied else env[self.operands[0]]
    result, = self.block.solve(env, [first, env[self.operands[1]]])
    self.sums = result - first
    if self.sums & env[MEET] and not self.varied:
      self.varied = True
      return self.solve(env)
    env[self.outs[0]] = first


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
    'lax.optimization_barrier(({0}, {1}))[0] * .7',
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
]


def collectives(axis, size):
  """(template, axes added, axes removed, whether all devices must meet)."""
  one = frozenset([axis])
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
      (f'lax.ppermute(meet({{0}}), {axis!r}, {ring})', one, NONE, True),
      (f'vary({{0}}) * lax.axis_index({axis!r})', ALL, NONE, False),
  ]


EXTREMES = ['lax.pmax(meet({{0}}), {0!r})', 'lax.pmin(meet({{0}}), {0!r})']
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
               wide=True, statements=6, sizes=(2, 2), forward=False):
    self.rng = random.Random(seed)
    self.control_flow = control_flow
    self.differentiable = differentiable
    self.wide = wide
    self.size = statements
    self.sizes = dict(zip(AXES, sizes))
    self.count = 0
    self.forward = forward  # in what is differentiated forward
    self.local = False  # in what can't know its device
    self.other = set()  # names that aren't vectors

  def name(self):
    self.count += 1
    return f't{self.count}'

  def program(self):
    env = dict(INPUTS)
    env[MEET] = NONE
    body = self.statements(env, self.size, 0, NONE)
    made = [n for s in body for n in s.outs if n not in self.other]
    results = made[-1:] + self.rng.sample(made, min(2, len(made)))
    return Block(list(INPUTS), body, list(dict.fromkeys(results)))

  def statements(self, env, count, depth, divergent):
    return [s for _ in range(count)
            for s in self.statement(env, depth, divergent)]

  def statement(self, env, depth, divergent):
    kinds = ['op'] * 4 + ['collective'] * 2 + ['index']
    if self.wide and depth < 3:
      kinds += ['call'] * 3 + ['gradient']
    if self.control_flow and depth < 3:
      kinds += ['branch'] * 3 + ['loop'] * 3
    made = getattr(self, self.rng.choice(kinds))(env, depth, divergent)
    return made if isinstance(made, list) else [made]

  def pick(self, env, n=1):
    names = [n for n in env if n != MEET and n not in self.other]
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
      templates = self.rng.choice([templates, ROUGH])
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
    body = [*before, *self.statements(inner, self.rng.randint(1, 3), depth + 1,
                                      divergent)]
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
    outs = [self.name() for _ in range(self.rng.randint(1, 2))]
    count = self.rng.choice([2, 2, 3, 4])
    kind = 'switch' if count > 2 else self.rng.choice(
        ['cond', 'cond', 'key' if self.wide else 'cond', 'switch'])
    blocks = []
    for _ in range(count):
      params = [self.name(), self.name()]
      blocks.append(self.block(
          env, params, [env[o] for o in operands], len(outs), depth,
          divergent | env[index]))
    s = Branch(outs, index, operands, blocks, kind)
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

  def loop(self, env, depth, divergent):
    kinds = ['scan', 'scan_xs', 'fori', 'scan_length', 'scan_unrolled',
             'scan_never']
    if not self.differentiable:
      kinds += ['while', 'while', 'fori_dynamic', 'fori_from', 'while_never',
                'while_both']
      if not divergent:
        kinds += ['while_pmax']
      if 'x' not in divergent:
        kinds += ['while_psum']
    kind = self.rng.choice(kinds)
    *inits, over = self.pick(env, 3)
    if kind in ('while', 'while_never', 'while_both'):
      divergent = ALL
    elif kind == 'while_psum':
      # Devices along 'y' part ways, and so they do for the predicate's psum.
      divergent = divergent | {'y'}
    elif kind in ('fori_dynamic', 'fori_from'):
      divergent = divergent | env[over]
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
    if scanned:
      made = [n for s in block.body for n in s.outs if n not in self.other]
      block.results.append(self.rng.choice(made))
      outs.append(self.name())
    s = Loop(outs, kind, inits, block, over)
    for statement in [s, *after]:
      statement.solve(env)
    return [*before, s, *after]

  def restricted(self, method, *args, **limits):
    before = {k: getattr(self, k) for k in limits}
    for k, limit in limits.items():
      setattr(self, k, limit or before[k])
    result = method(*args)
    vars(self).update(before)
    return result

  def call(self, env, depth, divergent):
    calls = self.rng.choice([CALLS, CALLS, CLOSED_CALLS, FORWARD_CALLS])
    kind = self.rng.choice([k for k in calls
                            if not (self.forward and 'custom_vjp' in k)])
    operands, params = self.pick(env, 2), [self.name(), self.name()]
    if 'vjp' in kind:  # what a gradient inside means differs for collectives
      divergent = ALL
    around = {MEET: NONE} if calls is CLOSED_CALLS else env
    bound = union(env[o] for o in operands)
    block = self.restricted(
        self.block, around, params, [bound, bound], self.rng.randint(1, 2),
        depth, divergent, differentiable=calls is not CALLS,
        local='vjp' in kind, forward='jvp' in kind or calls is FORWARD_CALLS)
    outs = [self.name() for _ in block.results]
    s = Call(outs, kind, operands, block)
    s.solve(env)
    return s

  def gradient(self, env, depth, divergent):
    operands, params = self.pick(env, 2), [self.name(), self.name()]
    kind = self.rng.choice(list(GRADIENTS))
    block = self.restricted(
        self.block, env, params, [ALL, ALL], 1, depth, ALL, differentiable=True,
        forward=kind == 'hvp')
    s = Gradient([self.name()], kind, operands, block)
    env[MEET] = divergent
    s.solve(env)
    return s


# Running a program.


def source_of(program):
  return HEADER + '\n'.join(program.lines('body'))


def function_of(program, **scope):
  exec(source_of(program), scope)  # pylint: disable=exec-used
  return scope['body']


def inputs(seed, sizes):
  rng = np.random.RandomState(seed)
  shape = lambda axes: [n for a, n in zip(AXES, sizes) if a in axes] + [3]
  return [rng.uniform(-1, 1, shape(axes)).astype('f')
          for axes in INPUTS.values()]


def emulate(program, sizes, args):
  """All devices' results, stacked along two leading axes, without devices."""
  index = lambda: lax.axis_index('x') + lax.axis_index('y')
  body = function_of(
      program, vary=lambda x: x, meet=lambda x: x + 0. * index(),
      total=lambda g, axes: lax.psum(g, axes) if axes else g)
  ins = lambda axis: [0 if axis in axes else None for axes in INPUTS.values()]
  return jax.vmap(jax.vmap(body, ins('y'), axis_name='y', axis_size=sizes[1]),
                  ins('x'), axis_name='x', axis_size=sizes[0])(*args)


def vary(x):
  """``x``, cast to vary along all axes."""
  axes = tuple(sorted(ALL - axes_of(x)))
  if not axes:
    return x
  if hasattr(lax, 'pcast'):
    return lax.pcast(x, axes, to='varying')
  return lax.pvary(x, axes)


def sharded(program, sizes, out_axes, record):
  """The program in shard_map, its results joined along ``out_axes``."""
  spec = lambda axes: P(*(a for a in AXES if a in axes))
  body = function_of(program, vary=vary, meet=lambda x: x,
                     total=lambda g, axes: g)

  def per_device(*args):
    outs = body(*(x.reshape(3) for x in args))
    record.append([axes_of(x) for x in outs])
    return tuple(x.reshape((1,) * len(axes) + (3,))
                 for x, axes in zip(outs, out_axes))

  count = int(np.prod(sizes))
  mesh = Mesh(np.array(jax.devices()[:count]).reshape(sizes), AXES)
  return shard_map(per_device, mesh=mesh,
                   in_specs=tuple(map(spec, INPUTS.values())),
                   out_specs=tuple(map(spec, out_axes)))


def axes_of(x):
  if hasattr(x, 'rep'):  # 0.5.3 keeps the axes along which x is the same
    return ALL - x.rep
  aval = getattr(x, 'aval', None)
  if aval is None or jax.__version_info__ < (0, 6):
    return frozenset()
  return aval.mat.varying if hasattr(aval, 'mat') else aval.vma


def pick_varying(stacked, axes):
  """One device's results for each axis along which they don't vary."""
  return stacked[tuple(slice(None) if a in axes else 0 for a in AXES)]


def weighted(outs):
  weights = lambda o: np.linspace(1., 2., o.size, dtype='f').reshape(o.shape)
  return sum(jnp.sum(o * weights(o)) for o in outs)


REVERSE = dict(
    reverse=lambda f: jax.jit(jax.value_and_grad(f, range(5), has_aux=True)),
    remat=lambda f: jax.jit(jax.value_and_grad(
        jax.checkpoint(f), range(5), has_aux=True)),
    eager=lambda f: jax.value_and_grad(f, range(5), has_aux=True),
    forward=lambda f: jax.jit(lambda *args: (lambda value, t, aux: (
        (value, aux), [t] * 5))(*jax.jvp(
            f, args, tuple(map(jnp.cos, args)), has_aux=True))),
    twice=lambda f: jax.jit(lambda *args: (f(*args), jax.jvp(jax.grad(
        lambda *a: f(*a)[0], range(5)), args, tuple(map(jnp.cos, args)))[1])),
)
VALUES = dict(
    jit=lambda f: lambda *args: (jax.jit(f)(*args), ()),
    eager=lambda f: lambda *args: (f(*args), ()),
)


class Case:
  """The program of a seed, the mesh it is run on, and how."""

  def __init__(self, seed, control_flow, wide=WIDE):
    rng = random.Random(seed)
    self.differentiable = seed % 2 == 0
    self.sizes, self.mode = (2, 2), 'reverse' if self.differentiable else 'jit'
    if wide:
      self.sizes = rng.choice([(2, 2), (2, 2), (2, 2), (4, 1), (1, 3), (2, 4)])
      self.mode = rng.choice([self.mode] * 3 + list(
          REVERSE if self.differentiable else VALUES))
    self.transform = {**VALUES, **REVERSE}[self.mode]
    if self.mode == 'eager':
      self.transform = (REVERSE if self.differentiable else VALUES)['eager']
    self.program = Generator(
        seed, control_flow, self.differentiable, wide,
        3 if self.mode == 'eager' else 4 if wide else 6, self.sizes,
        self.mode in ('forward', 'twice')).program()
    self.args = inputs(seed, self.sizes)
    self.want_axes = self.program.solve({}, list(INPUTS.values()))

  def emulated(self, *args):
    outs = emulate(self.program, self.sizes, args)
    return weighted([pick_varying(o, a)
                     for o, a in zip(outs, self.want_axes)]), outs


def fault_of(case):
  """What is wrong with the program, or None."""
  want_axes, args = case.want_axes, case.args
  emulated = REVERSE['reverse'] if case.mode in ('remat', 'eager') and (
      case.differentiable) else VALUES['jit'] if case.mode == 'eager' else (
          case.transform)
  types = []
  fun = sharded(case.program, case.sizes, want_axes, types)
  loss = lambda *args: (lambda outs: (weighted(outs), outs))(fun(*args))
  (_, stacked), want_grads = emulated(case.emulated)(*args)
  try:
    (_, outs), grads = case.transform(loss)(*args)
  except Exception as e:  # pylint: disable=broad-except
    return f'refused: {type(e).__name__}: {e}'
  for i, (axes, want) in enumerate(zip(types[0], want_axes)):
    if not axes <= want:
      return (f'result {i} is typed as varying along {sorted(axes)}, by the '
              f'rules it varies along {sorted(want)}')
    for axis in ALL - axes:
      each = np.moveaxis(stacked[i], AXES.index(axis), 0)
      if not np.allclose(each, each[:1], 1e-4, 1e-5, equal_nan=True):
        return (f'result {i} differs along {axis!r} and is typed as varying '
                f'along {sorted(axes)}')
    if not np.allclose(outs[i], pick_varying(stacked[i], want), 1e-3, 1e-4,
                       equal_nan=True):
      return f'result {i} is {outs[i]}, not {stacked[i]}'
  for name, got, want in zip(INPUTS, grads, want_grads):
    if not np.allclose(got, want, 1e-2, 1e-3, equal_nan=True):
      return f'gradient of {name} is {got}, not {want}'
  return None


RUN = '''
import os
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=8'
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map
{source}

def vary(x):
  aval = x.aval
  axes = tuple(sorted({{'x', 'y'}} - (
      aval.mat.varying if hasattr(aval, 'mat') else aval.vma)))
  cast = (lambda x: lax.pcast(x, axes, to='varying')) if hasattr(
      lax, 'pcast') else lambda x: lax.pvary(x, axes)
  return cast(x) if axes else x

meet = lambda x: x
total = lambda g, axes: g
mesh = Mesh(np.array(jax.devices()[:{count}]).reshape{sizes}, ('x', 'y'))
f = shard_map(
    lambda *a: tuple(o.reshape((1,) * n + (3,)) for o, n in zip(
        body(*(x.reshape(3) for x in a)), {ranks})),
    mesh=mesh, in_specs={ins},
    out_specs={outs})
args = {args}
print(jax.jit(f)(*map(np.float32, args)))  # found by: {mode}
'''


def report(seed, case, fault):
  spec = lambda axes: 'P(' + ', '.join(repr(a) for a in AXES if a in axes) + ')'
  specs = lambda all_axes: '(' + ', '.join(map(spec, all_axes)) + ',)'
  text = RUN.format(
      source=source_of(case.program), ranks=[len(a) for a in case.want_axes],
      ins=specs(INPUTS.values()), outs=specs(case.want_axes), mode=case.mode,
      count=int(np.prod(case.sizes)), sizes=case.sizes,
      args=[np.round(x, 3).tolist() for x in case.args])
  return f'Program of seed {seed}: {fault}\n' + textwrap.indent(text, '  ')


@jtu.with_config(jax_numpy_dtype_promotion='standard',
                 jax_numpy_rank_promotion='allow')
class FuzzTest(jtu.JaxTestCase):

  def faults(self, seeds, control_flow):
    cases = [(seed, Case(seed, control_flow)) for seed in seeds]
    # A re-evaluated jaxpr can be typed more coarsely than its values are, to
    # which nothing but the internal checks of 0.6.0 objects; users run without.
    old = (0, 6) <= jax.__version_info__ < (0, 7)
    with jax.enable_checks(jax.config.jax_enable_checks and not old):
      return [report(seed, case, fault) for seed, case in cases
              if (fault := fault_of(case))]

  def test_straight_lines(self):
    faults = self.faults(range(SEED, SEED + (PROGRAMS + 2) // 3), False)
    self.assertEmpty(faults, '\n'.join(faults))

  def test_control_flow(self):
    if not CONTROL_FLOW:
      self.skipTest('needs the patches that promote carries')
    faults = self.faults(range(SEED, SEED + PROGRAMS), True)
    self.assertEmpty(faults, '\n'.join(faults))

  def test_same_programs_for_the_same_seed(self):
    make = lambda seed: source_of(Generator(seed, True, False).program())
    self.assertEqual(make(3), make(3))
    self.assertNotEqual(make(3), make(4))
    kinds = ('lax.scan', 'lax.cond', 'lax.switch', 'lax.while_loop',
             'lax.fori_loop', 'lax.psum', 'lax.all_gather', 'lax.ppermute',
             'jax.grad', 'jax.vmap', 'jax.custom_vjp', 'jax.random.key')
    text = '\n'.join(map(make, range(60)))
    for kind in kinds:
      self.assertIn(kind, text)

  def test_a_lost_axis_is_found(self):
    # The comparison isn't vacuous: the emulation tells devices apart.
    program = Block(list(INPUTS), [Op('t', 'jnp.sin({0})', ['a'])], ['t'])
    stacked, = emulate(program, (2, 2), inputs(0, (2, 2)))
    self.assertFalse(np.allclose(stacked[0], stacked[1]))
    self.assertEqual(program.solve({}, list(INPUTS.values())), [{'x'}])


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
