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
from shard_map_programs import ALL, AXES, Block, Generator, INPUTS, Op

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
WIDE = jax.__version_info__ >= (0, 6)  # transformations, other carries
HEADER = 'import jax\nfrom jax import lax\nimport jax.numpy as jnp\n\n'


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


def sharded(program, sizes, out_axes, record, check=True):
  """The program in shard_map, its results joined along ``out_axes``."""
  spec = lambda axes: P(*(a for a in AXES if a in axes))
  body = function_of(program, vary=vary if check else lambda x: x,
                     meet=lambda x: x, total=lambda g, axes: g)

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
