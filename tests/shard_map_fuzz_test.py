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

A program is a tree of statements on vectors of three: arithmetic, collectives,
branches and loops whose bodies capture what is outside. Three readings of it
are compared:
  - its source, run in shard_map on a 2x2 mesh with the check on;
  - the same source under vmap with axis names: no mesh, no types, true
    derivatives;
  - the rules of issue 3 on the tree, worked out here on their own: along which
    axes each result may vary at most.
A program fails if it is refused, if a type is coarser than the rules, if
devices differ along an axis that the type leaves out, or if a value or a
gradient differs. A collective stands only where all devices meet it.

  MEND_FUZZ_PROGRAMS=500 MEND_FUZZ_SEED=1000 pytest shard_map_fuzz_test.py

Without automatic promotion of carries (patches for control flow) the programs
are straight lines.
"""
import dataclasses
import importlib.util
import os
import random
import textwrap

from absl.testing import absltest
import jax
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

PROGRAMS = int(os.environ.get('MEND_FUZZ_PROGRAMS', 8))
SEED = int(os.environ.get('MEND_FUZZ_SEED', 0))
CONTROL_FLOW = any(
    importlib.util.find_spec('jax._src.' + name) is not None
    for name in ('varying_flow', 'shard_map_rules'))
if jax.__version_info__ < (0, 6):
  # Its CPU runtime crashes on collectives in nested loops, check on or off.
  os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + (
      ' --xla_cpu_use_thunk_runtime=false')
AXES = ('x', 'y')
ALL = frozenset(AXES)
INPUTS = {'a': frozenset('x'), 'b': frozenset('y'), 'c': ALL,
          'w': frozenset(), 'v': frozenset()}
HEADER = 'import jax\nfrom jax import lax\nimport jax.numpy as jnp\n\n'


# Programs. Every statement can write itself as source, and can say what its
# results vary along, given that for the names in `env`.


@dataclasses.dataclass
class Op:
  """``out = template(args)``; a collective or index changes the axes."""
  out: str
  template: str
  args: list
  adds: frozenset = frozenset()
  removes: frozenset = frozenset()

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
    return [f'def {name}({params}):'] + ['  ' + line for line in text]

  def solve(self, env, axes):
    env = {**env, **dict(zip(self.params, axes))}
    for s in self.body:
      s.solve(env)
    return [env[r] for r in self.results]

  def forwarded(self, operands):
    """For each result, the name outside that it is, if it is one."""
    made = {n for s in self.body for n in outs_of(s)}
    names = dict(zip(self.params, operands))
    return [None if r in made else names.get(r, r) for r in self.results]


@dataclasses.dataclass
class Branch:
  """``cond`` or ``switch`` on a number made from one of the names."""
  outs: list
  index: str
  operands: list
  blocks: list

  def lines(self):
    names = [f'{self.outs[0]}_branch{i}' for i in range(len(self.blocks))]
    text = [line for n, b in zip(names, self.blocks) for line in b.lines(n)]
    operands = ', '.join(self.operands)
    if len(self.blocks) == 2:
      call = f'lax.cond(jnp.sum({self.index}) > .4, {", ".join(names)}'
    else:
      call = (f'lax.switch(jnp.sum({self.index} * 3).astype("i") % 3, '
              f'[{", ".join(names)}]')
    return text + [f'{tuple_of(self.outs)} = {call}, {operands})']

  def solve(self, env):
    index = env[self.index]
    outs = [b.solve(env, [env[o] for o in self.operands]) for b in self.blocks]
    forwarded = zip(*(b.forwarded(self.operands) for b in self.blocks))
    for name, each, names in zip(self.outs, zip(*outs), forwarded):
      same = names[0] is not None and len(set(names)) == 1
      env[name] = env[names[0]] if same else index.union(*each)


@dataclasses.dataclass
class Loop:
  """``scan``, ``fori_loop`` or ``while_loop`` with two carries."""
  outs: list
  kind: str
  inits: list
  block: Block
  over: str = ''

  def lines(self):
    name = f'{self.outs[0]}_body'
    init, outs = tuple_of(self.inits), tuple_of(self.outs)
    if self.kind == 'scan':
      text = self.block.lines(name)
      return text + [f'({outs}), _ = lax.scan(lambda c, s: '
                     f'({name}(*c), s), ({init}), {self.over})']
    if self.kind == 'scan_xs':
      text = self.block.lines(name)
      step = f'lambda c, s: ({name}(c[0] + s, c[1]), s)'
      return text + [f'({outs}), _ = lax.scan({step}, ({init}), {self.over})']
    if self.kind == 'fori':
      return self.block.lines(name) + [
          f'{outs} = lax.fori_loop(0, 2, lambda i, c: {name}(*c), ({init}))']
    if self.kind == 'fori_dynamic':
      return self.block.lines(name) + [
          f'{outs} = lax.fori_loop(0, 1 + jnp.heaviside('
          f'jnp.sum({self.over}), 0.).astype("i"), '
          f'lambda i, c: {name}(*c), ({init}))']
    test = {'while': 'jnp.sum(c[1][0]) < 2.',
            'while_pmax': "lax.pmax(jnp.sum(c[1][0]), ('x', 'y')) < 2."}
    return self.block.lines(name) + [
        f'_, ({outs}) = lax.while_loop(lambda c: (c[0] < 3) & '
        f'({test[self.kind]}), lambda c: (c[0] + 1, {name}(*c[1])), '
        f'(0, ({init})))']

  def solve(self, env):
    carries = [env[i] for i in self.inits]
    changed = [r != p for r, p in zip(self.block.results, self.block.params)]
    while True:
      ins = list(carries)
      predicate = frozenset()
      if self.kind == 'scan_xs':
        ins[0] = ins[0] | env[self.over]
        changed[0] = True
      elif self.kind == 'fori_dynamic':
        predicate = env[self.over]
      elif self.kind == 'while':
        predicate = carries[0]
      outs = self.block.solve(env, ins)
      new = [c | o | (predicate if ch else frozenset())
             for c, o, ch in zip(carries, outs, changed)]
      if new == carries:
        break
      carries = new
    env.update(zip(self.outs, carries))


def tuple_of(names):
  return ', '.join(names) + (',' if len(names) == 1 else '')


def outs_of(statement):
  return getattr(statement, 'outs', None) or [statement.out]


class Generator:
  """Makes programs; the same ones for the same seed.

  ``env`` bounds what a name varies along from above: a carry may come to vary
  along all axes. What is met under a predicate may diverge along its bound,
  and no collective over such an axis is put there.
  """

  def __init__(self, seed, control_flow, differentiable):
    self.rng = random.Random(seed)
    self.control_flow = control_flow
    self.differentiable = differentiable
    self.count = 0

  def name(self):
    self.count += 1
    return f't{self.count}'

  def program(self):
    env = dict(INPUTS)
    body = self.statements(env, 6, 0, frozenset())
    made = [n for s in body for n in outs_of(s)]
    results = made[-1:] + self.rng.sample(made, min(2, len(made)))
    return Block(list(INPUTS), body, list(dict.fromkeys(results)))

  def statements(self, env, count, depth, divergent):
    return [self.statement(env, depth, divergent) for _ in range(count)]

  def statement(self, env, depth, divergent):
    kinds = ['op'] * 4 + ['collective'] * 2 + ['index']
    if self.control_flow and depth < 3:
      kinds += ['branch'] * 3 + ['loop'] * 3
    return getattr(self, self.rng.choice(kinds))(env, depth, divergent)

  def pick(self, env, n=1):
    names = list(env)
    recent = names[-6:]
    return [self.rng.choice(recent if self.rng.random() < .6 else names)
            for _ in range(n)]

  def op(self, env, depth, divergent):
    template = self.rng.choice([
        'jnp.sin({0}) + {1}', 'jnp.tanh({0} * {1})', '{0} * .5 - {1}',
        'jnp.where({0} > {1}, {0}, jnp.cos({1}))', 'jnp.cumsum({0}) * .3',
        'jnp.full(3, .7) * {0}', 'jnp.full(3, .3)', 'jax.jit(jnp.exp)(-{0}**2)',
        'jax.checkpoint(lambda u: jnp.sin(u) * {1})({0})',
        'lax.stop_gradient({0}) * {1}', '{0}[::-1] / (1. + {1}**2)'])
    out = self.name()
    args = [n for i, n in enumerate(self.pick(env, 2))
            if f'{{{i}}}' in template]
    s = Op(out, template, args)
    s.solve(env)
    return s

  def collective(self, env, depth, divergent):
    axes = [a for a in AXES if a not in divergent]
    if not axes:
      return self.op(env, depth, divergent)
    axis, arg, out = self.rng.choice(axes), self.pick(env)[0], self.name()
    one = frozenset([axis])
    templates = [
        (f'lax.psum({{0}}, {axis!r}) * .4', frozenset(), one),
        (f'lax.pmean({{0}}, {axis!r})', frozenset(), one),
        (f'lax.all_gather({{0}}, {axis!r}).sum(0) * .4', one, frozenset()),
    ]
    if not divergent:  # XLA's permute has no groups: all devices must meet it
      templates.append((f'lax.ppermute({{0}}, {axis!r}, [(0, 1), (1, 0)])',
                        one, frozenset()))
    if not self.differentiable:
      templates.append((f'lax.pmax({{0}}, {axis!r})', frozenset(), one))
      templates.append((f'lax.pmin({{0}}, {axis!r})', frozenset(), one))
    template, adds, removes = self.rng.choice(templates)
    s = Op(out, template, [arg], adds, removes)
    s.solve(env)
    return s

  def index(self, env, depth, divergent):
    axis = self.rng.choice(AXES)
    template = f'jnp.full(3, .2) * lax.axis_index({axis!r}).astype("f")'
    s = Op(self.name(), template, [], frozenset([axis]))
    s.solve(env)
    return s

  def block(self, env, params, bounds, results, depth, divergent):
    inner = {**env, **dict(zip(params, bounds))}
    body = self.statements(inner, self.rng.randint(1, 3), depth + 1, divergent)
    made = [n for s in body for n in outs_of(s)]
    choices = made * 3 + params
    return Block(params, body, [self.rng.choice(choices)
                                for _ in range(results)])

  def branch(self, env, depth, divergent):
    index, *operands = self.pick(env, 3)
    outs = [self.name() for _ in range(self.rng.randint(1, 2))]
    blocks = []
    for _ in range(self.rng.choice([2, 2, 3])):
      params = [self.name(), self.name()]
      blocks.append(self.block(
          env, params, [env[o] for o in operands], len(outs), depth,
          divergent | env[index]))
    s = Branch(outs, index, operands, blocks)
    s.solve(env)
    return s

  def loop(self, env, depth, divergent):
    kinds = ['scan', 'scan_xs', 'fori']
    if not self.differentiable:
      kinds += ['while', 'while', 'fori_dynamic']
      if not divergent:
        kinds.append('while_pmax')
    kind = self.rng.choice(kinds)
    *inits, over = self.pick(env, 3)
    if kind == 'while':
      divergent = ALL
    elif kind == 'fori_dynamic':
      divergent = divergent | env[over]
    params = [self.name(), self.name()]
    block = self.block(env, params, [ALL, ALL], 2, depth, divergent)
    s = Loop([self.name(), self.name()], kind, inits, block, over)
    s.solve(env)
    return s


# Running a program.


def source_of(program):
  return HEADER + '\n'.join(program.lines('body'))


def function_of(program):
  scope = {}
  exec(source_of(program), scope)  # pylint: disable=exec-used
  return scope['body']


def inputs(seed):
  rng = np.random.RandomState(seed)
  return [rng.uniform(-1, 1, [2 for a in AXES if a in axes] + [3]).astype('f')
          for axes in INPUTS.values()]


def emulate(body, args):
  """All devices' results, stacked along two leading axes, without devices."""
  ins = lambda axis: [0 if axis in axes else None for axes in INPUTS.values()]
  return jax.vmap(jax.vmap(body, ins('y'), axis_name='y'), ins('x'),
                  axis_name='x')(*args)


def sharded(body, out_axes, record):
  """The program in shard_map, its results joined along ``out_axes``."""
  spec = lambda axes: P(*(a for a in AXES if a in axes))

  def per_device(*args):
    outs = body(*(x.reshape(3) for x in args))
    record.append([axes_of(x) for x in outs])
    return tuple(x.reshape((1,) * len(axes) + (3,))
                 for x, axes in zip(outs, out_axes))

  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), AXES)
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


def fault_of(seed, control_flow):
  """What is wrong with the program of that seed, or None."""
  differentiable = seed % 2 == 0
  program = Generator(seed, control_flow, differentiable).program()
  body, args = function_of(program), inputs(seed)
  want_axes = program.solve({}, list(INPUTS.values()))

  def emulated(*args):
    outs = emulate(body, args)
    outs = [jnp.broadcast_to(o, (2, 2, 3)) for o in outs]
    return weighted([pick_varying(o, a) for o, a in zip(outs, want_axes)]), outs

  types = []
  fun = sharded(body, want_axes, types)
  loss = lambda *args: (lambda outs: (weighted(outs), outs))(fun(*args))
  argnums = tuple(range(len(args)))
  if differentiable:
    run = lambda f: jax.jit(jax.value_and_grad(f, argnums, has_aux=True))(*args)
  else:
    run = lambda f: (jax.jit(f)(*args), ())
  (_, stacked), want_grads = run(emulated)
  try:
    (_, outs), grads = run(loss)
  except Exception as e:  # pylint: disable=broad-except
    return program, want_axes, f'refused: {type(e).__name__}: {e}'
  for i, (axes, want) in enumerate(zip(types[0], want_axes)):
    if not axes <= want:
      return program, want_axes, (
          f'result {i} is typed as varying along {sorted(axes)}, by the rules '
          f'it varies along {sorted(want)}')
    for axis in ALL - axes:
      one, two = np.moveaxis(stacked[i], AXES.index(axis), 0)
      if not np.allclose(one, two, 1e-4, 1e-5):
        return program, want_axes, (
            f'result {i} differs along {axis!r} and is typed as varying along '
            f'{sorted(axes)}')
    if not np.allclose(outs[i], pick_varying(stacked[i], want), 1e-3, 1e-4):
      return program, want_axes, f'result {i} is {outs[i]}, not {stacked[i]}'
  for name, got, want in zip(INPUTS, grads, want_grads):
    if not np.allclose(got, want, 1e-2, 1e-3):
      return program, want_axes, f'gradient of {name} is {got}, not {want}'
  return None


RUN = '''
import os
os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=4'
import numpy as np
from jax.sharding import Mesh, PartitionSpec as P
try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map
{source}

mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
f = shard_map(
    lambda *a: tuple(o.reshape((1,) * n + (3,)) for o, n in zip(
        body(*(x.reshape(3) for x in a)), {ranks})),
    mesh=mesh, in_specs={ins},
    out_specs={outs})
args = {args}
print(jax.jit(f)(*map(np.float32, args)))
'''


def report(seed, program, want_axes, fault):
  spec = lambda axes: 'P(' + ', '.join(repr(a) for a in AXES if a in axes) + ')'
  specs = lambda all_axes: '(' + ', '.join(map(spec, all_axes)) + ',)'
  text = RUN.format(
      source=source_of(program), ranks=[len(a) for a in want_axes],
      ins=specs(INPUTS.values()), outs=specs(want_axes),
      args=[np.round(x, 3).tolist() for x in inputs(seed)])
  return f'Program of seed {seed}: {fault}\n' + textwrap.indent(text, '  ')


class FuzzTest(jtu.JaxTestCase):

  def faults(self, seeds, control_flow):
    found = [(s, f) for s in seeds if (f := fault_of(s, control_flow))]
    return [report(seed, *fault) for seed, fault in found]

  def test_straight_lines(self):
    faults = self.faults(range(SEED, SEED + (PROGRAMS + 1) // 2), False)
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
             'lax.fori_loop', 'lax.psum', 'lax.all_gather', 'lax.ppermute')
    text = '\n'.join(map(make, range(40)))
    for kind in kinds:
      self.assertIn(kind, text)

  def test_a_lost_axis_is_found(self):
    # The comparison isn't vacuous: the emulation tells devices apart.
    program = Block(list(INPUTS), [Op('t', 'jnp.sin({0})', ['a'])], ['t'])
    stacked, = emulate(function_of(program), inputs(0))
    self.assertFalse(np.allclose(stacked[0], stacked[1]))
    self.assertEqual(program.solve({}, list(INPUTS.values())), [{'x'}])


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
