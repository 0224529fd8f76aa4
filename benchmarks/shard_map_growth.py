# SPDX-License-Identifier: Apache-2.0
"""How the time to trace and to lower grows with the layers of a program.

  python benchmarks/shard_map_growth.py PRISTINE MENDED [NAME,NAME] [ROUNDS]
      [bare]

PRISTINE and MENDED are each a Python that has that jax, or PYTHON:FOLDER for a
Python with FOLDER put first on its path (what `build.py apply` writes). Ten
ordinary programs (``growth_programs``) of 10, 20, 40 and 80 layers, each plain,
differentiated outside and inside of ``shard_map``, with the casts that pristine
asks for; with ``bare``, mended has none, and does what it is for. Printed: the
ratio of mended to pristine in the processor's seconds, the least of ROUNDS (3)
in turn, to trace and to lower, and in calls of functions, which don't depend on
the machine. Fails if the calls are more than LIMIT times pristine's. A first
trace of each, which imports modules and fills tables once, isn't counted.
"""
import gc
import json
import os
import subprocess
import sys
import time

LIMIT = 1.05
LAYERS = (10, 20, 40, 80)


def calls(f):
  """The calls of functions, of Python's and of C's, and what ``f`` returns.

  Without those in which JAX searches a set of types of effects: it walks the
  set in the order of addresses, which differ from process to process.
  """
  count = 0

  def profile(frame, event, arg):
    del arg
    nonlocal count
    count += event in ('call', 'c_call') and not (
        frame.f_code.co_filename.endswith('effects.py'))
  sys.setprofile(profile)
  try:
    result = f()
  finally:
    sys.setprofile(None)
  return count, result


def worker(by_hand):
  """Answers lines on standard input: NAME KIND LAYERS, and how to measure."""
  import growth_programs as programs
  import jax
  names = [[n, k] for n in programs.PROGRAMS for k in programs.KINDS]
  print(json.dumps(names), flush=True)
  gc.disable()
  for line in sys.stdin:
    name, kind, layers, how = line.split()

    def measured(f):
      if how == 'calls':
        return calls(f)
      start = time.thread_time()
      result = f()
      return time.thread_time() - start, result
    try:
      f, args = programs.program(name, kind, int(layers), by_hand == 'True')
      traced_in, traced = measured(lambda: jax.jit(f).trace(*args))
      lowered_in, _ = measured(traced.lower)
      answer = [traced_in, lowered_in]
      del traced
    except Exception as e:
      answer = f'{type(e).__name__}: {str(e).splitlines()[0]}'
    gc.collect()
    print(json.dumps(answer), flush=True)


class Side:
  """One of the two processes."""

  def __init__(self, python, by_hand):
    python, _, folder = python.partition(':')
    env = dict(os.environ, PYTHONHASHSEED='0', JAX_PLATFORMS='cpu',
               XLA_FLAGS='--xla_force_host_platform_device_count=8')
    if folder:
      env['PYTHONPATH'] = folder
    self.process = subprocess.Popen(
        [python, __file__, '--worker', str(by_hand)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env=env)
    self.names = self.answer()

  def answer(self):
    return json.loads(self.process.stdout.readline())

  def ask(self, *words):
    print(*words, file=self.process.stdin, flush=True)
    return self.answer()


def ratios(sides, name, kind, layers, rounds):
  """Mended to pristine: seconds, then calls, each to trace and to lower."""
  found = []
  for how in ['seconds'] * rounds + ['calls']:
    answers = [s.ask(name, kind, layers, how) for s in sides]
    for answer in answers:
      if isinstance(answer, str):
        return answer
    found.append(answers)
  *times, counts = found
  least = [[min((t[side][stage] for t in times), default=1.)
            for stage in (0, 1)] for side in (0, 1)]
  return [least[0], *([m / p for p, m in zip(*pair)] for pair in
                      (least, counts))]


def compare(pristine, mended, chosen='', rounds='3', bare=''):
  sides = [Side(pristine, True), Side(mended, not bare)]
  print(f'{"program":34s}{"pristine":>16s}{"seconds":>16s}{"calls":>16s}')
  failed = []
  for name, kind in sides[0].names:
    if chosen and name not in chosen.split(','):
      continue
    for side in sides:
      side.ask(name, kind, LAYERS[0], 'calls')
    for layers in LAYERS:
      label = f'{name} {kind} {layers}'
      result = ratios(sides, name, kind, layers, int(rounds))
      if isinstance(result, str):
        failed.append(label)
        print(f'{label:34s}{result[:100]}', flush=True)
        continue
      cells = [f'{a:.3f} {b:.3f}' for a, b in result]
      print(f'{label:34s}' + ''.join(f'{c:>16s}' for c in cells), flush=True)
      if max(result[2]) > LIMIT:
        failed.append(label)
  print(f'{len(failed)} beyond {LIMIT}: {", ".join(failed) or "none"}')
  return bool(failed)


if __name__ == '__main__':
  if sys.argv[1] == '--worker':
    worker(sys.argv[2])
  else:
    sys.exit(compare(*sys.argv[1:]))
