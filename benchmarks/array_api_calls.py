# SPDX-License-Identifier: Apache-2.0
"""What a call of the array API's mended functions costs, against pristine.

Run it with a mended Python, and name a pristine one:

  python benchmarks/array_api_calls.py --pristine=PYTHON [--rounds=N]

Each side is one process that stays; they take turns in rounds, in either order,
and of each call a side has the least mean of a hundred. None of these calls
compiles anything after the first. Limit: 1.05 times.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time

LIMIT = 1.05
CALLS = 100


def calls():
  """The calls, by name."""
  import jax
  import jax.numpy as jnp
  import numpy as np

  def aligned(size):  # and so shared
    room = np.zeros(size + 32, np.float32)
    start = -room.ctypes.data % 64 // 4
    return room[start:start + size]

  numbers, big = aligned(8192), aligned(1 << 20)
  x, device = jnp.ones(3), jax.devices()[0]
  few = np.ones(3, np.float32)
  return {
      'from_dlpack of NumPy, 32 kB': lambda: jnp.from_dlpack(numbers),
      'from_dlpack of NumPy, 4 MB': lambda: jnp.from_dlpack(big),
      'from_dlpack, copy=True': lambda: jnp.from_dlpack(few, copy=True),
      'from_dlpack of an array': lambda: jnp.from_dlpack(x),
      'linspace(0, 1, 50)': lambda: jnp.linspace(0, 1, 50),
      'linspace of arrays': lambda: jnp.linspace(x, x, 5),
      'zeros(3)': lambda: jnp.zeros(3),
      'full(3, 2.)': lambda: jnp.full(3, 2.),
      'empty_like': lambda: jnp.empty_like(x),
      'full_like': lambda: jnp.full_like(x, 2.),
      'arange(5)': lambda: jnp.arange(5),
      'eye(3)': lambda: jnp.eye(3),
      'array of NumPy': lambda: jnp.array(few),
      'asarray of NumPy': lambda: jnp.asarray(few),
      'asarray of an array': lambda: jnp.asarray(x),
      'array of an array': lambda: jnp.array(x),
      'asarray, device=': lambda: jnp.asarray(few, device=device),
      'zeros, device=': lambda: jnp.zeros(3, device=device),
      'astype': lambda: jnp.astype(x, jnp.int32),
      'device_put of NumPy': lambda: jax.device_put(few),
      'device_put of an array, device': lambda: jax.device_put(x, device),
      'take_along_axis': lambda: jnp.take_along_axis(
          x, jnp.zeros(1, int), axis=0),
      'x.device': lambda: x.device,
      'sin(x)': lambda: jnp.sin(x),
      'max(x)': lambda: jnp.max(x),
  }


def serve():
  import jax
  held = calls()
  for call in held.values():
    jax.block_until_ready(call())
  print(json.dumps([jax.__version__, list(held)]), flush=True)
  for line in sys.stdin:
    call = held[json.loads(line)]
    begun = time.perf_counter()
    for _ in range(CALLS):
      call()
    took = time.perf_counter() - begun
    jax.block_until_ready(call())
    print(json.dumps(took / CALLS), flush=True)


class Server:
  """A process that makes the calls of one side."""

  def __init__(self, python):
    env = dict(os.environ, JAX_PLATFORMS='cpu')
    if python != sys.executable:
      env.pop('PYTHONPATH', None)
    self.process = subprocess.Popen(
        [python, os.path.abspath(__file__), '--serve'], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    self.version, self.names = json.loads(self.process.stdout.readline())

  def time(self, name):
    self.process.stdin.write(json.dumps(name) + '\n')
    self.process.stdin.flush()
    return json.loads(self.process.stdout.readline())


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--pristine', help='a Python with the pristine base')
  parser.add_argument('--rounds', type=int, default=60)
  parser.add_argument('--only', default='', help='calls whose name has this')
  parser.add_argument('--serve', action='store_true', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.serve:
    serve()
    return 0
  sides = [Server(args.pristine), Server(sys.executable)]
  print(f'| {sides[0].version}, us | pristine | mended | times |\n'
        '|---|---|---|---|')
  held = True
  for name in sides[0].names:
    if args.only not in name:
      continue
    least = [math.inf, math.inf]
    for _ in range(args.rounds):
      for i in random.sample((0, 1), 2):
        least[i] = min(least[i], sides[i].time(name))
    ratio = least[1] / least[0]
    held &= ratio <= LIMIT
    print(f'| {name} | {1e6 * least[0]:.2f} | {1e6 * least[1]:.2f} '
          f'| {ratio:.2f} |', flush=True)
  for side in sides:
    side.process.stdin.close()
    side.process.wait()
  print(f"{'ok' if held else 'FAILED'}: at most {LIMIT} times")
  return 0 if held else 1


if __name__ == '__main__':
  sys.exit(main())
