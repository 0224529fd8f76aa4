# SPDX-License-Identifier: Apache-2.0
"""What the programs that Mend lowers in another way cost, to run and compile.

Run it with a mended Python, and name a pristine one:

  python benchmarks/lowerings.py --pristine=PYTHON [--group=NAME] [--write=PAGE]

Three sides take turns, in two processes that live through the whole run:
pristine, mended, and, of the extrema, mended with `jax_cpu_nan_extrema`. Of
each program a side has the least of many calls, and the least of a few
compilations of a function that is traced anew; in each round the sides come in
another order. Where mended lowers to pristine's text, a program's line has '='.

With --one_core both run on one core, the same one. On a busy machine a kernel
of several threads has all of its cores in one process and not in the other, by
chance, and a factor of two is no difference then.

Limits, for what is on by default: of extrema, 1.5 times in the geometric mean
of all programs and 2.2 in each; of the others 1.3 in each, or 1.05 of a call of
compute_on. To compile, 30 ms more.
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

MORE = 0.030
REAL = ('float32', 'bfloat16', 'float16', 'float64')
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
  return f'axis {axes[0]}' if len(axes) == 1 else f'axes {axes}'


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


def on_complex_numbers():
  """The functions that have other values at infinities and nan."""
  import jax
  import jax.numpy as jnp
  programs = {}
  for name in ('log1p', 'log2', 'tan', 'tanh', 'arcsin', 'arccos', 'arctan',
               'arcsinh', 'arccosh', 'arctanh'):
    f = getattr(jnp, name)
    for shape in ((100,), (65536,), (1000, 1000)):
      programs[f'{name} of {shape}'] = f, shape
    programs[f'gradient of {name} of (65536,)'] = jax.grad(
        lambda x, f=f: jnp.sum(jnp.abs(f(x)))), (65536,)
  return programs


def on_hosts():
  """Programs on the host, by compute_on, and one that is beside it."""
  import jax
  import jax.numpy as jnp
  from jax._src import compute_on as lib

  def host(f):
    if jax.__version_info__ < (0, 11, 1):
      return lib.compute_on('device_host')(jax.jit(f))
    return lib.compute_on(jax.jit(f), compute_type='device_host',
                          out_memory_spaces=jax.memory.Space.Device)

  def layers(x):
    for _ in range(4):
      x = jnp.tanh(x @ x) + jnp.cumsum(x, 0)
    return x

  programs = {}
  for shape in ((8, 8), (300, 300)):
    for f in (jnp.sin, jnp.sort, layers):
      inside = host(f)
      programs[f'compute_on of {f.__name__} of {shape}'] = (
          lambda x, f=inside: f(x), shape)
      programs[f'compute_on of {f.__name__} of {shape}, used'] = (
          lambda x, f=inside: f(x * 2) + 1, shape)
  return programs


def on_mapped_devices():
  """Programs in shard_map with casts and permutes, differentiated too."""
  import jax
  from jax import lax
  import jax.numpy as jnp
  shard_map, _ = mapped()
  mesh = jax.sharding.Mesh(jax.devices(), ('x',))
  spec, whole = jax.sharding.PartitionSpec('x'), jax.sharding.PartitionSpec()
  ring = [(i, (i + 1) % 8) for i in range(8)]

  def moved(x):
    return lax.ppermute(x, 'x', ring)

  def summed(x):
    return lax.psum(jnp.tanh(x), 'x')

  def weighed(x):
    weight = jnp.ones((), x.dtype)  # which is cast
    return lax.pmean(jnp.sum(jnp.tanh(x * weight)), 'x')

  programs = {}
  for shape in ((8, 100), (8, 100_000)):
    for f, out in ((moved, spec), (summed, whole), (weighed, whole)):
      g = shard_map(f, mesh=mesh, in_specs=spec, out_specs=out)
      programs[f'{f.__name__} of {shape}'] = g, shape
      programs[f'gradient of {f.__name__} of {shape}'] = jax.grad(
          lambda x, g=g: jnp.sum(g(x).astype(jnp.float32) ** 2)), shape
  return programs


# The programs, their dtypes, the number of devices; and the limits, of the
# geometric mean and of each.
GROUPS = {
    'extrema': (on_one_device, REAL, 1, 1.5, 2.2),
    'extrema of several devices': (on_eight_devices, REAL, 8, 1.5, 2.2),
    'complex functions': (on_complex_numbers, ('complex64', 'complex128'), 1,
                          1.3, 1.3),
    'compute_on': (on_hosts, ('float32',), 1, 1.05, 1.3),
    'shard_map': (on_mapped_devices, ('float32', 'bfloat16'), 8, 1.05, 1.3),
}


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
  if dtype.startswith('complex'):
    x = x + 1j * x[::-1]
  x = jnp.asarray(x).astype(dtype)
  if len(jax.devices()) == 1:
    return x
  spec = jax.sharding.PartitionSpec(*[] if 'whole' in name else ['x'])
  mesh = jax.sharding.Mesh(jax.devices(), ('x',))
  return jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))


def serve(group):
  """Answers each line of a name, a dtype, a side and what to measure."""
  import jax
  jax.config.update('jax_enable_x64', True)
  programs = GROUPS[group][0]()
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
      if hasattr(jax.config, 'jax_cpu_nan_extrema'):
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


def _pinned():
  os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Server:
  """A process that holds the programs of one side or two."""

  def __init__(self, python, group, one_core=False):
    devices = GROUPS[group][2]
    env = dict(os.environ, JAX_PLATFORMS='cpu')
    if devices > 1:
      env['XLA_FLAGS'] = f'--xla_force_host_platform_device_count={devices}'
    if python != sys.executable:
      env.pop('PYTHONPATH', None)
    self.process = subprocess.Popen(
        [python, os.path.abspath(__file__), f'--serve={group}'], env=env,
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        preexec_fn=_pinned if one_core else None)
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
  sides = list(servers)
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


def table(found):
  """The lines of a table of what `measure` returned, by name and dtype."""
  some = next(iter(found.values()))
  dtypes = list(some)
  sides = [side for side in SIDES[1:] if side in some[dtypes[0]][0]]
  def cells(row, of):
    return '; '.join(of(*row[dtype]) for dtype in dtypes)
  def ratio(side):
    return lambda run, _, texts: (
        '=' if texts[side] == texts['pristine']
        else f"{run[side] / run['pristine']:.2f}")
  def more(side):
    return lambda _, took, texts: (
        '=' if texts[side] == texts['pristine']
        else f"{1e3 * (took[side] - took['pristine']):.0f}")
  head = ['program', 'ms', *sides, 'to compile, ms',
          *(f'{side}, more' for side in sides)]
  lines = [f"| {' | '.join(head)} |", '|---' * len(head) + '|']
  for name, row in found.items():
    parts = [cells(row, lambda run, *_: f"{1e3 * run['pristine']:.3f}"),
             *(cells(row, ratio(side)) for side in sides),
             cells(row, lambda _, took, __: f"{1e3 * took['pristine']:.0f}"),
             *(cells(row, more(side)) for side in sides)]
    lines.append(f"| {' | '.join([name, *parts])} |")
  return lines


def verdicts(found, limits):
  """For each side a line, and whether what is on by default is cheap."""
  lines, held = [], True
  for side in SIDES[1:]:
    rows = [(run[side] / run['pristine'], took[side] - took['pristine'],
             texts[side] == texts['pristine'], f'{dtype}: {name}')
            for name, row in found.items()
            for dtype, (run, took, texts) in row.items() if side in run]
    if not rows:
      continue
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
        held = (ratio <= limits[0] and worst[0] <= limits[1]
                and slowest[1] <= MORE)
    lines.append(line)
  return lines, held


def measure_group(group, args):
  """The lines of a group's section, and whether its limits are held."""
  _, dtypes, _, *limits = GROUPS[group]
  pristine, mended = (Server(python, group, args.one_core)
                      for python in (args.pristine, sys.executable))
  servers = {'pristine': pristine, 'mended': mended}
  if group.startswith('extrema'):
    servers['option'] = mended
  measure(servers, mended.names[0], dtypes[0], 1)  # what is slow at first
  found = {}
  for name in mended.names:
    if args.only in name:
      found[name] = {dtype: measure(servers, name, dtype, args.rounds)
                     for dtype in dtypes}
      print(table({name: found[name]})[-1], flush=True)
  pristine.close()
  mended.close()
  if not found:
    return [], True
  said, held = verdicts(found, limits)
  print('\n'.join(said), flush=True)
  where = ', on one core' if args.one_core else ''
  return [f'## {mended.version}: {group}{where}', '',
          f"{', '.join(dtypes)}.", '',
          *(f'- {line}' for line in said), ''], held


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--pristine', help='a Python with the pristine base')
  parser.add_argument('--rounds', type=int, default=15)
  parser.add_argument('--group', action='append', choices=list(GROUPS),
                      help='default: all')
  parser.add_argument('--one_core', action='store_true',
                      help='pin both processes to one core')
  parser.add_argument('--only', default='', help='programs whose name has this')
  parser.add_argument('--write', help='the page to append the totals to')
  parser.add_argument('--serve', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    serve(args.serve)
    return 0
  held = True
  for group in args.group or GROUPS:
    lines, cheap = measure_group(group, args)
    held &= cheap
    if args.write and lines:
      with open(args.write, 'a', encoding='utf-8') as page:
        page.write('\n' + '\n'.join(lines).rstrip() + '\n')
    if not cheap:
      print(f'FAILED: {group}')
  print('ok' if held else 'FAILED: beyond the limits')
  return 0 if held else 1


if __name__ == '__main__':
  sys.exit(main())
