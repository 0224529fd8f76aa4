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
"""Runs a random program in shard_map and without devices, and compares."""
import random
import textwrap

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from varying.testing.common import axes_of as varying_axes
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import ships
from varying.testing.common import shard_map
from varying.testing.fuzz_generator import Generator
from varying.testing.fuzz_program import ALL
from varying.testing.fuzz_program import AXES
from varying.testing.fuzz_program import INPUTS


# Transformations, other carries. 0.6.0 needs the patches for its transposes and
# forward mode as well.
WIDE = jax.__version_info__ >= (0, 10) or (
    ships('jax._src.varying.autodiff.transposes'))
HEADER = 'import jax\nfrom jax import lax\nimport jax.numpy as jnp\n\n'


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


def axes_of(x):
  return ALL - x.rep if hasattr(x, 'rep') else varying_axes(x)  # 0.5.3 has rep


def sharded(program, sizes, out_axes, record):
  """The program in shard_map, its results joined along ``out_axes``."""
  spec = lambda axes: P(*(a for a in AXES if a in axes))
  body = function_of(
      program, vary=lambda x: cast(x, sorted(ALL - axes_of(x))),
      meet=lambda x: x, total=lambda g, axes: g)

  def per_device(*args):
    outs = body(*(x.reshape(3) for x in args))
    record.append([axes_of(x) for x in outs])
    return tuple(x.reshape((1,) * len(axes) + (3,))
                 for x, axes in zip(outs, out_axes))

  return shard_map(per_device, mesh=make_mesh(*sizes),
                   in_specs=tuple(map(spec, INPUTS.values())),
                   out_specs=tuple(map(spec, out_axes)))


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
