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
"""What minima and maxima that keep nan cost, to run and to compile, on CPUs.

Run it with a mended Python, and name a pristine one:

  python benchmarks/nan_extrema.py --pristine=PYTHON [--write=PAGE]

Three sides take turns, in two processes that live through the whole run:
pristine, mended, and mended with the option `jax_cpu_nan_extrema`. Of each
program a side has the least of many calls, and the least of a few compilations
of a function that is traced anew; in each round the sides come in another
order. Where mended lowers to pristine's text, that is said. Limits, for what
is on by default: 1.5 times in the geometric mean of all programs, 2.2 in each,
30 ms more to compile each.
"""

import argparse
import hashlib
import json
import math
import os
import random
import subprocess
import sys
import time

MEAN, EACH, MORE = 1.5, 2.2, 0.030
DTYPES = ('float32', 'bfloat16', 'float16', 'float64')
SIDES = ('pristine', 'mended', 'option')
# Shapes and the axes that are reduced.
REDUCTIONS = (
    ((100,), (0,)), ((10_000,), (0,)), ((1000, 1000), (0, 1)),
    ((10_000_000,), (0,)), ((100, 100), (0,)), ((1000, 1000), (0,)),
    ((64, 128, 1000), (0,)), ((64, 128, 1000), (0, 1)),
    ((64, 128, 1000), (1,)), ((8, 32, 32, 64), (1, 2)), ((100, 100), (1,)),
    ((1000, 1000), (1,)), ((64, 128, 1000), (2,)))
IMAGES = (8, 32, 32, 64)
# Of eight devices: shape, axes, and the dimension that is split.
SPLIT = (((8, 1000), (0,), 0), ((8, 1000), (1,), 0), ((1000, 1000), (0,), 0),
         ((1000, 1000), (1,), 0), ((1000, 1000), (0, 1), 0),
         ((64, 128, 1000), (0,), 0), ((64, 128, 1000), (0, 1), 0),
         ((64, 128, 1000), (2,), 0), ((1000, 1000), (0,), None))
TOGETHER = ((), (100,), (10_000,), (1_000_000,))


def words(axes):
  return f"axis {axes[0]}" if len(axes) == 1 else f'axes {axes}'


def on_one_device():
  """Programs of one array, as pairs of a function and a shape, by name."""
  import jax
  from jax import lax
  import jax.numpy as jnp

  def of_one(f):
    return lambda x: jnp.sum(f(x).astype(jnp.float32) ** 2)

  def pool(x):
    window = (1, 2, 2, 1)
    return lax.reduce_window(x, -jnp.inf, lax.max, window, window, 'VALID')

  def eight(x):
    for _ in range(8):
      x = jax.nn.softmax(x * 3)
    return x

  programs = {}
  for shape, axes in REDUCTIONS:
    for name in ('max', 'min'):
      programs[f'{name} of {shape}, {words(axes)}'] = (
          lambda x, f=getattr(jnp, name), axes=axes: f(x, axes), shape)
  square, large = (1000, 1000), (64, 128, 1000)
  for shape in (square, large):
    for axis in range(len(shape)):
      for f in (jax.nn.softmax, jax.nn.logsumexp):
        programs[f'{f.__name__} of {shape}, axis {axis}'] = (
            lambda x, f=f, axis=axis: f(x, axis=axis), shape)
    for f in (jnp.sum, jnp.mean):
      for axis in (None, 0, 1):
        programs[f'{f.__name__} of relu of {shape}, axis {axis}'] = (
            lambda x, f=f, axis=axis: f(jax.nn.relu(x), axis), shape)
  programs[f'max of abs of {square}, axis 0'] = (
      lambda x: jnp.max(jnp.abs(x), 0), square)
  programs[f'relu of {square}'] = jax.nn.relu, square
  programs[f'max_pool of {IMAGES}, 2 x 2'] = pool, IMAGES
  programs['eight softmaxes of (128, 128)'] = eight, (128, 128)
  for name, (f, shape) in list(programs.items()):
    if not name.startswith('min'):
      programs[f'gradient of {name}'] = jax.grad(of_one(f)), shape
  return programs


def on_eight_devices():
  """Programs of an array that is split, in the same form."""
  import jax
  from jax import lax
  import jax.numpy as jnp
  shard_map, unchecked = mapped()
  programs = {}
  for shape, axes, split in SPLIT:
    where = 'whole' if split is None else f'split by axis {split}'
    programs[f'max of {shape}, {words(axes)}, {where}'] = (
        lambda x, axes=axes: jnp.max(x, axes), shape)
  mesh = jax.sharding.Mesh(jax.devices(), ('x',))
  spec = jax.sharding.PartitionSpec('x')
  for name in ('pmax', 'pmin'):
    for shape in TOGETHER:
      f = lambda x, f=getattr(lax, name): f(x, 'x')
      programs[f'{name} of {shape} on each'] = shard_map(
          f, mesh=mesh, in_specs=spec, out_specs=jax.sharding.PartitionSpec(),
          **unchecked), (8, *shape)
  return programs


def mapped():
  import jax
  if hasattr(jax, 'shard_map'):
    return jax.shard_map, dict(check_vma=False)
  from jax.experimental import shard_map
  return shard_map.shard_map, dict(check_rep=False)


def operand(name, shape, dtype):
  """Numbers of a program, on eight devices where its name says how."""
  import jax
  import jax.numpy as jnp
  import numpy as np
  x = np.random.RandomState(0).randn(*shape).astype(np.float32)
  x = jnp.asarray(x).astype(dtype)
  if len(jax.devices()) == 1:
    return x
  spec = jax.sharding.PartitionSpec(*[] if 'whole' in name else ['x'])
  mesh = jax.sharding.Mesh(jax.devices(), ('x',))
  return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))


def serve():
  """Answers each line of a name, a dtype, a side and what to measure."""
  import jax
  jax.config.update('jax_enable_x64', True)
  programs = (on_one_device if len(jax.devices()) == 1
              else on_eight_devices)()
  held, compiled, calls = None, {}, {}
  print(json.dumps([jax.__version__, list(programs)]), flush=True)
  for line in sys.stdin:
    name, dtype, side, what, count = json.loads(line)
    if held is None or held[0] != (name, dtype):
      compiled.clear()
      calls.clear()
      held = (name, dtype), operand(name, programs[name][1], dtype)
    f, x = programs[name][0], held[1]
    if what == 'compile':
      if side != 'pristine':
        jax.config.update('jax_cpu_nan_extrema', side == 'option')
      lowered = jax.jit(lambda x, f=f: f(x)).lower(x)
      text = lowered.as_text()
      begun = time.perf_counter()
      compiled[side] = lowered.compile()
      answer = [time.perf_counter() - begun,
                hashlib.sha256(text.encode()).hexdigest()]
      jax.block_until_ready(compiled[side](x))
    else:
      call, least = compiled[side], math.inf
      for _ in range(count):
        begun = time.perf_counter()
        jax.block_until_ready(call(x))
        least = min(least, time.perf_counter() - begun)
      answer = least
    print(json.dumps(answer), flush=True)


class Server:
  """A process that holds one side's programs, or two sides'."""

  def __init__(self, python, devices):
    env = dict(os.environ, JAX_PLATFORMS='cpu')
    if devices > 1:
      env['XLA_FLAGS'] = f'--xla_force_host_platform_device_count={devices}'
    if python != sys.executable:
      env.pop('PYTHONPATH', None)
    self.process = subprocess.Popen(
        [python, os.path.abspath(__file__), '--serve'], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    self.version, self.names = self.answer()

  def answer(self):
    return json.loads(self.process.stdout.readline())

  def ask(self, *words):
    self.process.stdin.write(json.dumps(words) + '\n')
    self.process.stdin.flush()
    return self.answer()

  def close(self):
    self.process.stdin.close()
    self.process.wait()


def measure(servers, name, dtype, rounds):
  """Each side's time to run, to compile, and its text, of one program."""
  sides = list(SIDES)
  run = dict.fromkeys(sides, math.inf)
  compile_ = dict(run)
  texts = {}
  for _ in range(5):
    random.shuffle(sides)
    for side in sides:
      seconds, texts[side] = servers[side].ask(name, dtype, side, 'compile', 1)
      compile_[side] = min(compile_[side], seconds)
  begun = time.perf_counter()
  for done in range(rounds):
    random.shuffle(sides)
    for side in sides:
      run[side] = min(run[side],
                      servers[side].ask(name, dtype, side, 'run', 5))
    if done >= 7 and time.perf_counter() - begun > 2:
      break  # of the slow ones there need be no more
  return run, compile_, texts


def mean(ratios):
  return math.exp(sum(map(math.log, ratios)) / len(ratios))


def cells(found, of):
  return '; '.join(of(*found[dtype]) for dtype in DTYPES)


def table(found):
  """The lines of a table of what `measure` returned, by name and dtype."""
  lines = [
      '| program | pristine, ms | mended | with the option | to compile, ms '
      '| mended, more | with the option, more |', '|---|---|---|---|---|---|---|']
  for name, row in found.items():
    def ratio(side):
      def of(run, _, texts):
        same = texts[side] == texts['pristine']
        return '=' if same else f"{run[side] / run['pristine']:.2f}"
      return cells(row, of)

    def more(side):
      return cells(row, lambda _, took, texts: '=' if (
          texts[side] == texts['pristine'])
          else f"{1e3 * (took[side] - took['pristine']):.0f}")
    lines.append(' | '.join((
        f'| {name}', cells(row, lambda run, *_: f"{1e3 * run['pristine']:.3f}"),
        ratio('mended'), ratio('option'),
        cells(row, lambda _, took, __: f"{1e3 * took['pristine']:.0f}"),
        more('mended'), more('option'))) + ' |')
  return lines


def verdicts(found):
  """For each side a line, and whether what is on by default is cheap."""
  lines, held = [], True
  for side in SIDES[1:]:
    rows = [(run[side] / run['pristine'], took[side] - took['pristine'],
             texts[side] == texts['pristine'], f'{dtype}: {name}')
            for name, row in found.items()
            for dtype, (run, took, texts) in row.items()]
    other = [row for row in rows if not row[2]]
    line = (f'{side}: of {len(rows)} programs {len(rows) - len(other)} are '
            "lowered to pristine's text")
    if other:
      worst, slowest = max(other), max(other, key=lambda row: row[1])
      ratio = mean([1. if row[2] else row[0] for row in rows])
      line += (f'; {ratio:.2f} times in the geometric mean of all, '
               f'{mean([row[0] for row in other]):.2f} of the others, at most '
               f'{worst[0]:.2f} ({worst[3]}), {1e3 * slowest[1]:.0f} ms more '
               f'to compile ({slowest[3]})')
      if side == 'mended':
        held = ratio <= MEAN and worst[0] <= EACH and slowest[1] <= MORE
    lines.append(line)
  return lines, held


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--pristine', help='a Python with the pristine base')
  parser.add_argument('--rounds', type=int, default=15)
  parser.add_argument('--only', default='', help='programs whose name has this')
  parser.add_argument('--write', help='the page to append the tables to')
  parser.add_argument('--serve', action='store_true', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    serve()
    return 0
  lines, held = [], True
  for devices in (1, 8):
    pristine, mended = (Server(python, devices)
                        for python in (args.pristine, sys.executable))
    servers = dict(zip(SIDES, (pristine, mended, mended)))
    found = {}
    measure(servers, mended.names[0], 'float32', 1)  # what is slow at first
    for name in mended.names:
      if args.only in name:
        found[name] = {dtype: measure(servers, name, dtype, args.rounds)
                       for dtype in DTYPES}
        print(table({name: found[name]})[-1], flush=True)
    pristine.close()
    mended.close()
    if not found:
      continue
    said, cheap = verdicts(found)
    held &= cheap
    where = 'one device' if devices == 1 else f'{devices} devices'
    lines += [f'## {mended.version}, {where}', '',
              *(f'- {line}' for line in said), '', *table(found), '']
    print('\n'.join(said), flush=True)
  if args.write:
    with open(args.write, 'a', encoding='utf-8') as page:
      page.write('\n' + '\n'.join(lines).rstrip() + '\n')
  print(f"{'ok' if held else 'FAILED'}: at most {MEAN} in the mean, {EACH} "
        f'each, {1e3 * MORE:.0f} ms')
  return 0 if held else 1


if __name__ == '__main__':
  sys.exit(main())
