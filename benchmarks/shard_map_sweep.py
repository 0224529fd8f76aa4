# SPDX-License-Identifier: Apache-2.0
"""Calls some hundreds of public functions inside shard_map, and compares.

    python benchmarks/shard_map_sweep.py [--only=REGEX] [--trace] [--eager]
                                         [--x64] [--mesh=2d] [--after=NAME]
                                         [--every=N]

Each function is called with the check on, on arguments that all vary along the
mesh axis and on mixtures of such and of replicated ones: forward, gradient with
respect to each floating argument, and jvp with a direction that is the same on
all devices. Values are compared with those of the same function on each
device's block, outside of shard_map (gradients with respect to replicated
arguments with the sum). ``--trace`` stops at tracing: what is refused, in a
tenth of the time. ``--eager`` applies shard_map without jit. ``--x64`` makes
every float double and compares more closely. With ``--mesh=2d`` arguments vary
along both axes, one of them, or none. ``--after`` goes on after a function, in
alphabetical order, and ``--every`` takes each N-th only.

Prints one line for each failure, and counts of functions, calls, and calls
that are refused outside of shard_map too. Not part of the tests: it takes
minutes.
"""
import argparse
import collections
import os
import re
import sys

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('XLA_FLAGS', '--xla_force_host_platform_device_count=8')

# pylint: disable=g-import-not-at-top
import jax
from jax.sharding import Mesh
import numpy as np

TESTS = os.path.join(os.path.dirname(__file__), os.pardir, 'tests')
sys.path.insert(0, TESTS)

import varying.testing.sweep_cases as cases

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

REFUSED = 'refused outside of shard_map too'


def check(f, kinds, limits='', trace=False, eager=False, two=False):
  """Yields (mixture, part, outcome) for each call; '' if all is well."""
  sizes = cases.sizes_of(two)
  mesh = Mesh(np.array(jax.devices()[:cases.DEVICES]).reshape(*sizes.values()),
              tuple(sizes))
  parts, wrt = cases.parts_of(f, kinds, limits)
  jitted = {}
  for mixture in cases.mixtures(len(kinds), two):
    placed = cases.Placed(kinds, mixture, sizes)
    for part, g in parts.items():
      label = '|'.join(mixture)
      h = shard_map(placed.within(g), mesh=mesh, in_specs=placed.specs,
                    out_specs=placed.specs_of(part, wrt))
      try:
        if trace:
          jax.make_jaxpr(h)(*placed.args)
          yield label, part, ''
          continue
        got = (h if eager else jax.jit(h))(*placed.args)
      except Exception as e:  # pylint: disable=broad-exception-caught
        text = f'{type(e).__name__}: {e}'
        try:
          jax.make_jaxpr(g)(*placed.per_device[0])
        except Exception as alone:  # pylint: disable=broad-exception-caught
          if type(alone) is type(e):
            text = REFUSED
        yield label, part, ' '.join(text.split())[:300]
        continue
      if part not in jitted:
        jitted[part] = jax.jit(g)
      want = placed.expected(
          part, wrt, [jitted[part](*a) for a in placed.per_device])
      yield label, part, cases.difference(got, want)


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--only', default='')
  parser.add_argument('--trace', action='store_true')
  parser.add_argument('--eager', action='store_true')
  parser.add_argument('--x64', action='store_true')
  parser.add_argument('--mesh', choices=['1d', '2d'], default='1d')
  parser.add_argument('--after', default='')
  parser.add_argument('--every', type=int, default=1)
  args = parser.parse_args()
  jax.config.update('jax_enable_x64', args.x64)
  count = collections.Counter()
  entries = [e for e in sorted(cases.table().items()) if e[0] > args.after]
  for name, entry in entries[::args.every]:
    if re.search(args.only, name):
      count['functions'] += 1
      print(f'\r{name:30}', end='\r', file=sys.stderr, flush=True)
      for label, part, outcome in check(
          *entry, trace=args.trace, eager=args.eager, two=args.mesh == '2d'):
        count['calls'] += 1
        if outcome == REFUSED:
          count['refused elsewhere'] += 1
        elif outcome:
          count['failures'] += 1
          print(f'{name} [{label}] {part}: {outcome}', flush=True)
  print(f"jax {jax.__version__}: {count['functions']} functions,"
        f" {count['calls']} calls, {count['refused elsewhere']} refused"
        f" outside of shard_map too, {count['failures']} failures")
  return bool(count['failures'])


if __name__ == '__main__':
  sys.exit(main())
