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

PRISTINE and MENDED are each a Python that has that jax, or PYTHON:FOLDER for a
Python with FOLDER put first on its path (what `build.py apply` writes). Each is
one process that stays. Both trace and lower the step, data and tensor parallel,
checkpointed and differentiated, with its layers scanned and unrolled; they take
turns, so that they see the same machine. Printed: the least processor time on
pristine, the median of the ratios of neighbouring runs, and the ratio of steps
that the interpreter takes, which doesn't depend on the machine.
"""
import gc
import json
import os
import statistics
import subprocess
import sys
import time

LIMIT = 1.02
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


def counted(f):
  """The steps that the interpreter takes for ``f()``, and its result."""
  count = 0
  def trace(frame, event, _):
    nonlocal count
    frame.f_trace_opcodes = True
    count += event == 'opcode'
    return trace
  sys._getframe().f_trace_opcodes = True  # Python 3.12 wants it to begin with
  sys.settrace(trace)
  try:
    result = f()
  finally:
    sys.settrace(None)
  return count, result


def timed(f):
  """The nanoseconds of processor that ``f()`` takes, and its result."""
  start = time.thread_time_ns()
  result = f()
  return time.thread_time_ns() - start, result


def worker(layers):
  """Answers lines on standard input: how to measure, and a name."""
  made, args = steps(layers)
  print('', flush=True)
  gc.disable()
  for line in sys.stdin:
    how, name = line.split()
    measure = {'count': counted, 'time': timed}[how]
    jitted = made[name]()
    gc.collect()
    trace, traced = measure(lambda: jitted.trace(*args))
    lower, _ = measure(traced.lower)
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

  def ask(self, how, name):
    self.process.stdin.write(f'{how} {name}\n')
    self.process.stdin.flush()
    return json.loads(self.process.stdout.readline())


def main(pristine, mended, layers=24, rounds=15):
  sides = [Side(python, int(layers)) for python in (pristine, mended)]
  worst = 0.
  for name in ('scanned', 'unrolled'):
    for side in sides:
      side.ask('time', name)  # fills the caches of jax itself
    counts = [side.ask('count', name) for side in sides]
    pairs = []
    for n in range(int(rounds)):
      order = sides if n % 2 else sides[::-1]
      answers = [side.ask('time', name) for side in order]
      pairs.append(answers if n % 2 else answers[::-1])
    for stage, what in enumerate(STAGES):
      ratio = statistics.median(b[stage] / a[stage] for a, b in pairs)
      worst = max(worst, ratio)
      print(f'{name:8} {what}  {min(a[stage] for a, _ in pairs) / 1e6:8.1f} ms'
            f'  ratio {ratio:.3f} (limit {LIMIT})'
            f'  steps {counts[1][stage] / counts[0][stage]:.4f}', flush=True)
  return worst > LIMIT


if __name__ == '__main__':
  if sys.argv[1:2] == ['--worker']:
    worker(int(sys.argv[2]))
  elif len(sys.argv) >= 3:
    sys.exit(main(*sys.argv[1:]))
  else:
    sys.exit(__doc__)
