# SPDX-License-Identifier: Apache-2.0
"""What inferring the varying axes of loops and branches costs while tracing.

    python benchmarks/shard_map_tracing.py annotated > before   # pristine
    python benchmarks/shard_map_tracing.py bare > after         # mended
    python benchmarks/shard_map_tracing.py --compare PYTHON     # both, ratios

Programs are loops nested 1 to 8 deep whose carry becomes varying. ``annotated``
casts the initial carry by hand, which every release accepts; ``bare`` leaves
it. The time is the best of several traces, in CPU time of the thread, as a
shared machine's wall time is useless. With ``--compare``, the Python given
has the pristine release, the running one the mended, and runs alternate so
that both see the same machine.
"""
import functools
import json
import os
import subprocess
import sys
import time

DEPTHS = (1, 2, 3, 5, 8)
KINDS = ('while', 'scan', 'cond')
REPEATS, ROUNDS = 15, 4


def program(kind, depth, cast):
  from jax import lax
  import jax.numpy as jnp
  def step(x, c):
    for _ in range(10):
      c = jnp.sin(c) * x[0] + x[1]
    return c
  def nest(level, x, c):
    if level == 0:
      return step(x, c)
    inner = functools.partial(nest, level - 1, x)
    if kind == 'while':
      return lax.while_loop(lambda s: s[0] < 2,
                            lambda s: (s[0] + 1, inner(s[1])), (0, cast(c)))[1]
    if kind == 'scan':
      return lax.scan(lambda d, _: (inner(d), None), cast(c), None, length=2)[0]
    return lax.cond(lax.psum(x[0], 'x') > 0, inner, cast, cast(c))
  return lambda x: nest(depth, x, 0.)[None]


def measure(annotated):
  import jax
  from jax import lax
  import jax.numpy as jnp
  import numpy as np
  if hasattr(jax, 'shard_map'):
    shard_map = jax.shard_map
  else:
    from jax.experimental.shard_map import shard_map
  P = jax.sharding.PartitionSpec
  mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ('x',))
  def cast(c):
    c = jnp.asarray(c)
    typed = getattr(c.aval, 'mat', c.aval)
    if not annotated or getattr(typed, 'varying', getattr(
        typed, 'vma', frozenset())):
      return c
    if hasattr(lax, 'pcast'):
      return lax.pcast(c, 'x', to='varying')
    return lax.pvary(c, 'x')
  times = {}
  for kind in KINDS:
    for depth in DEPTHS:
      best = float('inf')
      for _ in range(REPEATS):
        f = shard_map(program(kind, depth, cast), mesh=mesh, in_specs=P('x'),
                      out_specs=P('x'))
        start = time.thread_time()
        jax.make_jaxpr(f)(jnp.ones(4))
        best = min(best, time.thread_time() - start)
      times[f'{kind} {depth}'] = best
  return times


def compare(pristine):
  best = {}
  for _ in range(ROUNDS):
    for name, python, mode in [('pristine', pristine, 'annotated'),
                               ('same', sys.executable, 'annotated'),
                               ('mended', sys.executable, 'bare')]:
      done = subprocess.run([python, __file__, mode], check=True, text=True,
                            capture_output=True)
      for key, value in json.loads(done.stdout).items():
        best[name, key] = min(value, best.get((name, key), value))
  print('program   pristine annotated   mended annotated   mended bare')
  for key in [f'{k} {d}' for k in KINDS for d in DEPTHS]:
    base = best['pristine', key]
    print(f'{key:9s} {1e3 * base:13.2f} ms {best["same", key] / base:14.2f} x'
          f' {best["mended", key] / base:15.2f} x')


if __name__ == '__main__':
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  os.environ.setdefault('XLA_FLAGS',
                        '--xla_force_host_platform_device_count=8')
  if sys.argv[1] == '--compare':
    compare(sys.argv[2])
  else:
    print(json.dumps(measure(sys.argv[1] == 'annotated')))
