# SPDX-License-Identifier: Apache-2.0
"""What a call through compute_on costs, against jax.jit around compute_on.

Run it with a mended Python; name a pristine one to see its figures beside:

  python benchmarks/compute_on_call.py [--pristine=PYTHON] [--rounds=N]

Rows: the decorated call `compute_on(jax.jit(f))(x)`, the compiled object of it
called, and `jax.jit(compute_on(f))` called and compiled, which every base has
and which is 1 by definition. A round times a few hundred calls of each, the
order shuffled; a figure is the ratio of the least times of all rounds, which
what else the machine does can only raise. `Compiled.__call__` is a Python
function on every base, `jax.jit`'s a C++ one: a compiled object is compared
with a compiled object, and with the jitted call for information.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import timeit

LIMIT = 1.05
CALLS = 300


def host(f):
  """`f` on the host, in the spelling of this release."""
  import jax
  from jax._src import compute_on as lib
  if jax.__version_info__ < (0, 11, 1):
    return lib.compute_on('device_host')(f)
  return lib.compute_on(f, compute_type='device_host',
                        out_memory_spaces=jax.memory.Space.Device)


def measure(rounds):
  """Returns the ratios, and microseconds of the base line, as a dict."""
  import jax
  import jax.numpy as jnp

  def f(x, y):
    return {'sum': x + y, 'product': x * y}
  args = (jnp.ones((8, 8)), jnp.ones((8, 8)))
  inside = jax.jit(host(f))
  decorated = host(jax.jit(f))
  calls = {
      'jit': inside,
      'jit, compiled': inside.lower(*args).compile(),
      'decorated': decorated,
  }
  if hasattr(decorated, 'lower'):
    calls['decorated, compiled'] = decorated.lower(*args).compile()
  for call in calls.values():
    jax.block_until_ready(call(*args))
  times = {name: [] for name in calls}
  names = list(calls)
  for _ in range(rounds):
    random.shuffle(names)
    for name in names:
      call = calls[name]
      seconds = timeit.timeit(lambda: call(*args), number=CALLS)
      times[name].append(seconds / CALLS)

  def ratio(name, to):
    return min(times[name]) / min(times[to])
  found = {'jit, us': min(times['jit']) * 1e6,
           'decorated / jit': ratio('decorated', 'jit'),
           'jit, compiled / jit': ratio('jit, compiled', 'jit')}
  if 'decorated, compiled' in times:
    found['decorated, compiled / jit, compiled'] = ratio(
        'decorated, compiled', 'jit, compiled')
    found['decorated, compiled / jit'] = ratio('decorated, compiled', 'jit')
  return {'version': jax.__version__, **found}


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument('--pristine', help='a Python with the pristine base')
  parser.add_argument('--rounds', type=int, default=301)
  parser.add_argument('--json', action='store_true', help='print the figures')
  args = parser.parse_args()
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  found = measure(args.rounds)
  if args.json:
    print(json.dumps(found))
    return 0
  sides = {'mended': found}
  if args.pristine:
    environment = {k: v for k, v in os.environ.items() if k != 'PYTHONPATH'}
    done = subprocess.run(
        [args.pristine, os.path.abspath(__file__), '--json',
         f'--rounds={args.rounds}'],
        check=True, capture_output=True, text=True, env=environment)
    sides['pristine'] = json.loads(done.stdout)
  print(f"| jax {found['version']} | {' | '.join(sides)} |")
  print(f"|---|{'---|' * len(sides)}")
  for row in found:
    if row != 'version':
      cells = (s.get(row) for s in sides.values())
      print(f'| {row} |', ' | '.join(
          'none' if c is None else f'{c:.3f}' for c in cells), '|')
  held = all(found[row] <= LIMIT for row in (
      'decorated / jit', 'decorated, compiled / jit, compiled'))
  print(f"{'ok' if held else 'FAILED'}: at most {LIMIT}")
  return 0 if held else 1


if __name__ == '__main__':
  sys.exit(main())
