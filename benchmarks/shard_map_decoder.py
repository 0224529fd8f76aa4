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
"""Time to trace and to lower a training step of a decoder.

  python benchmarks/shard_map_decoder.py PRISTINE MENDED [LAYERS] [ROUNDS]
      [PAIRS]

PRISTINE and MENDED are each a Python that has that jax, or PYTHON:FOLDER for a
Python with FOLDER put first on its path (what `build.py apply` writes). Each is
one process that stays. Both trace and lower the step, data and tensor parallel,
checkpointed and differentiated, with its layers scanned and unrolled; they take
turns, so that they see the same machine. Printed: the processor time on
pristine, two ratios of times, and that of the steps that the interpreter takes,
which doesn't depend on the machine.

Three things make the time differ that neither side's code does. CPython keeps
frames in chunks of 16 KiB, and maps a chunk anew whenever calls cross its end:
by up to two thirds, with the number of frames around it. So each round is at
another depth, and all rounds together at those of one whole chunk. A process
has its memory where it happens to, and so there are PAIRS of processes. And
what else the machine does only ever adds, by a fifth at times: of all times at
one depth the least counts, as in `timeit`, and the mean over the depths is what
is compared. The ratio of the medians, which the machine's noise is in, stands
beside it.
"""
import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import time

LIMIT = 1.02
CHUNK = 16 * 1024
OF_FRAME = 10 * 8  # bytes that every frame has, besides its values
STAGES = ('trace', 'lower')


def steps(layers):
  """The training step by name, and its arguments."""
  import check_replication as decoder
  import jax
  from jax.sharding import Mesh
  from jax.sharding import PartitionSpec as P
  import numpy as np
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('data', 'model'))
  specs = {'layers': decoder.SPECS, 'embed': P()}
  args = decoder.weights(layers), np.zeros(
      (decoder.BATCH, decoder.LENGTH), np.int32)

  def unrolled_scan(f, x, xs):
    for i in range(layers):
      x, _ = f(x, jax.tree.map(lambda w: w[i], xs))
    return x, None

  def step(params, tokens, scan):
    mapped = decoder.shard_map(
        lambda *a: decoder.loss(*a, scan=scan), mesh=mesh,
        in_specs=(specs, P('data')), out_specs=P())
    value, grads = jax.value_and_grad(mapped)(params, tokens)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

  scans = {'scanned': jax.lax.scan, 'unrolled': unrolled_scan}
  # A function that is new each time is traced each time.
  return {name: lambda scan=scan: jax.jit(lambda *a: step(*a, scan))
          for name, scan in scans.items()}, args


def timed(f):
  """The nanoseconds of processor that ``f()`` takes, and its result."""
  start = time.thread_time_ns()
  result = f()
  return time.thread_time_ns() - start, result


def at_depth(frames, f):
  """``f()``, within so many frames more."""
  return at_depth(frames - 1, f) if frames else f()


def chunk_in_frames():
  """The number of frames of ``at_depth`` that fill a chunk."""
  code = at_depth.__code__
  return CHUNK // (8 * (code.co_nlocals + code.co_stacksize) + OF_FRAME)


def worker(layers):
  """Answers lines on standard input: how to measure, a name, and a depth."""
  from shard_map_untouched import counted
  made, args = steps(layers)
  print('', flush=True)
  gc.disable()
  for line in sys.stdin:
    how, name, depth = line.split()
    measure = {'count': counted, 'time': timed}[how]
    jitted = made[name]()  # no collection: it empties the processor's caches
    run = functools.partial(at_depth, int(depth))
    trace, traced = measure(lambda: run(lambda: jitted.trace(*args)))
    lower, _ = measure(lambda: run(traced.lower))
    print(json.dumps([trace, lower]), flush=True)


class Side:
  """One of the two processes."""

  def __init__(self, python, layers):
    python, _, folder = python.partition(':')
    env = dict(os.environ, JAX_PLATFORMS='cpu', PYTHONHASHSEED='0',
               XLA_FLAGS='--xla_force_host_platform_device_count=4')
    if folder:
      env['PYTHONPATH'] = folder
    self.process = subprocess.Popen(
        [python, os.path.abspath(__file__), '--worker', str(layers)], env=env,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    self.process.stdout.readline()

  def ask(self, how, name, depth=0):
    self.process.stdin.write(f'{how} {name} {depth}\n')
    self.process.stdin.flush()
    return json.loads(self.process.stdout.readline())


def measured(pythons, first, layers, rounds, name):
  """The nanoseconds of each side, by depth and stage."""
  sides = {k: Side(pythons[k], layers) for k in (first, 1 - first)}
  sides = [sides[k] for k in (0, 1)]
  for side in sides:
    side.ask('time', name)  # fills the caches of jax itself
  times = [[], []]
  for n in range(rounds):
    depth = n * chunk_in_frames() // rounds
    for k in (0, 1) if n % 2 else (1, 0):
      times[k].append(sides[k].ask('time', name, depth))
  for side in sides:
    side.process.kill()
  return times


def counts(python, layers, name):
  """The interpreter's steps, by stage."""
  side = Side(python, layers)
  side.ask('time', name)
  steps_taken = side.ask('count', name)
  side.process.kill()
  return steps_taken


def least(processes, stage):
  """The mean over the depths of the least time that any process took."""
  by_depth = zip(*processes)
  return statistics.mean(min(t[stage] for t in ts) for ts in by_depth)


def median(processes, stage):
  return statistics.median(t[stage] for ts in processes for t in ts)


def main(pristine, mended, layers=24, rounds=12, pairs=10):
  worst = 0.
  for name in ('scanned', 'unrolled'):
    found = []
    first, then = (counts(p, layers, name) for p in (pristine, mended))
    for n in range(int(pairs)):
      found.append(measured(
          (pristine, mended), n % 2, layers, int(rounds), name))
      print(f'{name}: {n + 1} of {pairs} pairs', file=sys.stderr, flush=True)
    sides = [[times[k] for times in found] for k in (0, 1)]
    for stage, what in enumerate(STAGES):
      before, after = (least(side, stage) for side in sides)
      usual = median(sides[1], stage) / median(sides[0], stage)
      worst = max(worst, after / before)
      print(f'{name:8} {what}  {before / 1e6:8.1f} ms'
            f'  ratio {after / before:.3f} (limit {LIMIT})'
            f'  of medians {usual:.3f}'
            f'  steps {then[stage] / first[stage]:.4f}', flush=True)
  return worst > LIMIT


if __name__ == '__main__':
  if sys.argv[1:2] == ['--worker']:
    worker(int(sys.argv[2]))
  elif len(sys.argv) >= 3:
    sys.exit(main(*sys.argv[1:]))
  else:
    sys.exit(__doc__)
