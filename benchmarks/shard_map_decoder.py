# SPDX-License-Identifier: Apache-2.0
"""Time to trace and to lower a training step of a decoder.

  python benchmarks/shard_map_decoder.py PRISTINE MENDED [LAYERS] [ROUNDS]
      [PAIRS] [NAME,NAME]

PRISTINE and MENDED are each a Python that has that jax, or PYTHON:FOLDER for a
Python with FOLDER put first on its path (what `build.py apply` writes). Both
trace and lower the step, data and tensor parallel, checkpointed and
differentiated, with its layers scanned and unrolled (or one NAME of these).
Printed: the processor time on pristine, the ratio with its standard error, and
the ratio of the steps that the interpreter takes, which doesn't depend on the
machine. The same tree given twice shows what the machine alone makes of it.

Three things make the time differ that neither side's code does. CPython keeps
frames in chunks of 16 KiB, and maps a chunk anew whenever calls cross its end:
by up to two thirds, with the number of frames around it. So each round is at
another depth, and all rounds together at those of one whole chunk. A process
has its memory where it happens to, which is worth 4 % from one to the next: so
there are PAIRS of short processes, one of each side, and each pair draws the
order of its hashes and the size of its environment anew. And what else the
machine does only ever adds: of two times at one depth the lesser counts, as in
`timeit`. A pair's ratio is that of the means over the depths; what is printed
is the median of the pairs' ratios, and the error that it has.
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


def worker(layers, how, name, rounds):
  """Prints what tracing and lowering take, a line for each round."""
  from shard_map_untouched import counted
  made, args = steps(layers)
  measure = {'count': counted, 'time': timed}[how]
  made[name]().trace(*args).lower()  # fills the caches of jax itself
  gc.disable()  # a collection empties the processor's caches
  for n in range(rounds):
    run = functools.partial(at_depth, n * chunk_in_frames() // rounds)
    times = []
    for _ in range(2 if how == 'time' else 1):
      jitted = made[name]()
      trace, traced = measure(lambda: run(lambda: jitted.trace(*args)))
      lower, _ = measure(lambda: run(traced.lower))
      times.append((trace, lower))
    print(json.dumps([min(t) for t in zip(*times)]), flush=True)


def ask(python, *args, seed=0):
  """What a new process measures: by stage, the mean over its rounds."""
  python, _, folder = python.partition(':')
  env = dict(os.environ, JAX_PLATFORMS='cpu', PYTHONHASHSEED=str(seed),
             MEND_PADDING='x' * (seed * 241 % 4096),
             XLA_FLAGS='--xla_force_host_platform_device_count=4')
  if folder:
    env['PYTHONPATH'] = folder
  out = subprocess.run(
      [python, os.path.abspath(__file__), '--worker', *map(str, args)],
      env=env, stdout=subprocess.PIPE, text=True, check=True).stdout
  rounds = [json.loads(line) for line in out.splitlines()]
  return [statistics.mean(stage) for stage in zip(*rounds)]


def ratio(pairs, stage):
  """The median of the pairs' ratios, and its standard error.

  That of a median is 1.2533 times that of a mean, were the ratios normal; their
  spread is taken from the quartiles, which an outlier doesn't move.
  """
  ratios = [after[stage] / before[stage] for before, after in pairs]
  low, middle, high = statistics.quantiles(ratios, n=4)
  return middle, 1.2533 * (high - low) / 1.349 / len(ratios) ** 0.5


def main(pristine, mended, layers=24, rounds=12, pairs=40,
         names='scanned,unrolled'):
  pythons = pristine, mended
  above = False
  for name in names.split(','):
    first, then = (ask(p, layers, 'count', name, 1) for p in pythons)
    found = []
    for n in range(int(pairs)):
      pair = {k: ask(pythons[k], layers, 'time', name, rounds, seed=n)
              for k in (n % 2, 1 - n % 2)}
      found.append((pair[0], pair[1]))
      print(f'{name}: {n + 1} of {pairs} pairs', file=sys.stderr, flush=True)
    for stage, what in enumerate(STAGES):
      before = statistics.median(b[stage] for b, _ in found)
      times, error = ratio(found, stage)
      above |= times - 2 * error > LIMIT
      print(f'{name:8} {what}  {before / 1e6:8.1f} ms'
            f'  ratio {times:.3f} +- {error:.3f} (limit {LIMIT})'
            f'  steps {then[stage] / first[stage]:.4f}', flush=True)
  return above


if __name__ == '__main__':
  if sys.argv[1:2] == ['--worker']:
    worker(int(sys.argv[2]), *sys.argv[3:5], int(sys.argv[5]))
  elif len(sys.argv) >= 3:
    sys.exit(main(*sys.argv[1:]))
  else:
    sys.exit(__doc__)
