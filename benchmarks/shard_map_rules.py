# SPDX-License-Identifier: Apache-2.0
"""What shard_map's check costs on 0.5.3: tracing nested loops, and running.

Run it with a mended Python; name a pristine one to see its figures beside:

  python benchmarks/shard_map_rules.py [--pristine=/path/to/python]

Trace times are medians of `make_jaxpr` in milliseconds of processor time, for
loops and branches nested 1 to 8 deep whose carries become varying level by
level, and for one loop of more and more equations. Wanted: time grows as the
number of equations that the loops hold. Run times are medians of a compiled
time loop with the check on and off; the optimised HLO should be the same.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

DEPTHS = (1, 2, 4, 6, 8)
SIZES = (50, 200, 800)


def nested(kind, depth):
  from jax import lax
  import jax.numpy as jnp

  def wrap(f):
    if kind == 'scan':
      return lambda c: lax.scan(lambda c, _: ((*c[1:], f(c)[0] + c[0]), None),
                                c, None, length=2)[0]
    if kind == 'while':
      return lambda c: lax.while_loop(
          lambda c: c[0] < 1., lambda c: (*c[1:], f(c)[0] + c[0]), c)
    return lambda c: lax.cond(c[0] > 0, f, lambda c: c, c)
  f = lambda c: (jnp.sin(c[0]) + c[1], *c[1:])
  for _ in range(depth):
    f = wrap(f)
  return f


def long_loop(size):
  from jax import lax
  import jax.numpy as jnp

  def body(c, _):
    x, w = c
    for _ in range(size // 2):
      x = jnp.sin(x) * w
    return (x, w), None
  return lambda c: (lax.scan(body, c[:2], None, length=2)[0][0],)


def time_loop(x):
  from jax import lax
  import jax.numpy as jnp

  def body(c):
    x, t = c
    dt = lax.pmin(.01 / (1 + jnp.abs(x).max()), 'i')
    return x + dt * jnp.sin(x), t + dt
  return lax.while_loop(lambda c: c[1] < 1., body, (x, jnp.float32(0)))


def median_ms(f, repeats, clock=time.perf_counter):
  f()
  times = []
  for _ in range(repeats):
    began = clock()
    f()
    times.append(clock() - began)
  return 1e3 * statistics.median(times)


def measure():
  """Returns the figures of this Python's jax, by name."""
  import jax
  from jax.experimental.shard_map import shard_map
  import numpy as np
  P = jax.sharding.PartitionSpec
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ('i',))

  def trace(f, check):
    def run():
      jax.clear_caches()
      g = shard_map(lambda x, w: f((x[0], w, w))[0][None], mesh=mesh,
                    in_specs=(P('i'), P()), out_specs=P('i'), check_rep=check)
      jax.make_jaxpr(g)(np.ones(4, np.float32), np.float32(1))
    try:
      return median_ms(run, 5, time.process_time)
    except NotImplementedError:
      return None

  figures = {}
  for kind in ('scan', 'cond', 'while'):
    for depth in DEPTHS:
      figures[f'{kind} nested {depth}'] = [
          trace(nested(kind, depth), check) for check in (True, False)]
  for size in SIZES:
    figures[f'scan of {size}'] = [
        trace(long_loop(size), check) for check in (True, False)]

  def compiled(check):
    g = shard_map(time_loop, mesh=mesh, in_specs=P('i'),
                  out_specs=(P('i'), P()), check_rep=check)
    return jax.jit(g).lower(np.linspace(0, 9, 4096, dtype='float32')).compile()
  x = np.linspace(0, 9, 4096, dtype='float32')
  try:
    on, off = compiled(True), compiled(False)
    times = [[median_ms(lambda c=c: jax.block_until_ready(c(x)), 3)
              for c in (on, off)] for _ in range(7)]  # in turns
    figures['run, time loop'] = [statistics.median(t) for t in zip(*times)]
    # Names of functions and source lines differ.
    strip = lambda c: re.sub(r', metadata=\{[^}]*\}', '', c.as_text())
    figures['same HLO'] = strip(on) == strip(off)
  except NotImplementedError:
    figures['run, time loop'] = [None, None]
  return figures


def measured_by(python):
  env = dict(os.environ, JAX_PLATFORMS='cpu',
             XLA_FLAGS='--xla_force_host_platform_device_count=4')
  out = subprocess.run([python, __file__, '--figures'], env=env, check=True,
                       stdout=subprocess.PIPE, text=True).stdout
  return json.loads(out.splitlines()[-1])


def main():
  parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
  parser.add_argument('--pristine', help='a Python with the pristine jax')
  parser.add_argument('--figures', action='store_true', help=argparse.SUPPRESS)
  args = parser.parse_args()
  if args.figures:
    print(json.dumps(measure()))
    return
  mended = measured_by(sys.executable)
  pristine = measured_by(args.pristine) if args.pristine else {}
  show = lambda v: '-' if v is None else f'{v:.1f}'
  print('| ms | check on | check off | pristine, check on |')
  print('|----|----------|-----------|--------------------|')
  for name, value in mended.items():
    if isinstance(value, list):
      beside = pristine.get(name, [None])[0]
      cells = map(show, (*value, beside))
      print(f'| {name} |', ' | '.join(cells), '|')
  print(f"Optimised HLO with the check on and off: "
        f"{'the same' if mended.get('same HLO') else 'not the same'}.")


if __name__ == '__main__':
  main()
