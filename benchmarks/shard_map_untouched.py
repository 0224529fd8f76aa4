# SPDX-License-Identifier: Apache-2.0
"""Programs that upstream accepts: trace time, jaxpr and lowered text.

    python benchmarks/shard_map_untouched.py PYTHON

The Python given has the pristine release, the running one the mended. Each is
one process that stays; both trace the same program in turn, many times, so that
they see the same machine, and the least CPU time counts. The number of steps
that the interpreter takes doesn't depend on the machine. The jaxpr and the
lowered text are compared as they are.
"""
import functools
import gc
import hashlib
import json
import os
import re
import subprocess
import sys
import time

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('XLA_FLAGS', '--xla_force_host_platform_device_count=8')

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

ROUNDS = int(os.environ.get('ROUNDS', '60'))


class Cases:
  """The programs and their arguments, by name."""

  def __init__(self):
    shard_map = getattr(jax, 'shard_map', None)
    if shard_map is None:
      from jax.experimental.shard_map import shard_map
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
    self.shard_map = functools.partial(shard_map, mesh=mesh)
    self.x = np.arange(16., dtype=np.float32).reshape(4, 4)
    self.programs = {}

  def __call__(self, *specs, out_specs=P('x'), sharded=True):
    """Adds the function that is decorated."""
    def add(f):
      g = f
      if sharded:
        def g(*args):
          return self.shard_map(f, in_specs=specs or (P('x'),),
                                out_specs=out_specs)(*args)
        g.__name__ = f.__name__
      self.programs[f.__name__] = g, (self.x,) * max(len(specs), 1)
      return f
    return add


def cast(c):
  if hasattr(lax, 'pcast'):
    return lax.pcast(c, 'x', to='varying')
  return lax.pvary(c, 'x')


def arithmetic(case):
  """No control flow."""

  @case(P('x'), P(), P(), P())
  def mlp(x, *ws):
    for _ in range(4):
      for w in ws:
        x = jnp.tanh(x @ w + 1.)
    return x

  @case(P('x'), P(), out_specs=P())
  def mlp_loss(x, w):
    return lax.pmean(jnp.sum(jnp.tanh(x @ w)), 'x')

  @case(P('x'), P(), sharded=False)
  def mlp_gradient(x, w):
    f = lambda x, w: lax.psum(jnp.sum(jnp.tanh(x @ w) ** 2), 'x')
    run = case.shard_map(f, in_specs=(P('x'), P()), out_specs=P())
    return jax.grad(run, argnums=1)(x, w)

  @case(P('x'), P('y'), out_specs=P('x', 'y'))
  def matmul_2d(x, w):
    return x @ lax.all_gather(w, 'y', axis=0, tiled=True)[:, :2]

  @case(out_specs=P())
  def reductions(x):
    return lax.psum(x, 'x'), lax.pmax(x, 'x'), lax.pmean(x, 'x')

  @case()
  def collectives(x):
    y = lax.ppermute(x, 'x', [(0, 1), (1, 0)])
    z = lax.all_to_all(y, 'x', 1, 0, tiled=True).reshape(y.shape)
    return z + lax.psum_scatter(jnp.concatenate([x, x]), 'x', tiled=True)[:2]


def control_flow(case):
  """Loops and branches that need no promotion."""

  @case()
  def scan_annotated(x):
    step = lambda c, a: (jnp.sin(c) + a @ x[0] * jnp.cos(c), c * 2.)
    return lax.scan(step, cast(jnp.float32(0.)), x)[1]

  @case()
  def scan_varying(x):
    return lax.scan(lambda c, a: (c * a + jnp.sin(c), c), x[0], x)[1]

  @case(out_specs=P())
  def scan_replicated(x):
    total = lax.psum(x, 'x')
    return lax.scan(lambda c, a: (c * a + jnp.sin(c), c), total[0], total)[1]

  @case()
  def scan_closure(x):
    w = x * 2.
    return lax.scan(lambda c, a: (c @ w[:2, :2] + a[:2], c), x[0, :2], x)[1]

  @case()
  def nested_annotated(x):
    def outer(c, a):
      inner = lax.fori_loop(0, 3, lambda i, d: d * .5 + a.sum(), c)
      return lax.cond(lax.psum(1, 'x') > 0, lambda d: d + inner, lambda d: d,
                      c), inner
    return lax.scan(outer, cast(jnp.float32(0.)), x)[1]

  @case(out_specs=P())
  def while_replicated(x):
    total = lax.psum(x.sum(), 'x')
    return lax.while_loop(lambda c: c < total, lambda c: c * 2. + 1.,
                          total * 0.)

  @case(P('x'), P())
  def cond_casts_inside(x, w):
    for _ in range(10):
      x = lax.cond(x[0, 0] > 0, lambda x, w: x * cast(w[:2]),
                   lambda x, w: x + cast(w[2:]), x, w)
    return x

  @case()
  def cond_replicated_index(x):
    return lax.cond(lax.psum(x.sum(), 'x') > 0, jnp.sin, jnp.cos, x)


def transformations(case):
  """What stands inside of a shard_map otherwise."""

  @case()
  def remat(x):
    f = jax.checkpoint(lambda c, a: (jnp.sin(c) * a, c))
    return lax.scan(f, x[0], x)[1]

  @case()
  def jit_inside(x):
    f = jax.jit(lambda a, b: jnp.sin(a) @ b.T)
    return f(x, x) @ f(x, x)

  @case()
  def custom_rules(x):
    @jax.custom_vjp
    def f(a):
      return jnp.sin(a)
    f.defvjp(lambda a: (f(a), a), lambda a, g: (g * jnp.cos(a),))
    return f(x) * jax.nn.relu(x)

  @case()
  def vmapped(x):
    return jax.vmap(lambda a: jnp.sort(a) * a.sum())(x)

  @case()
  def softmax(x):
    return jax.nn.softmax(x) + jax.nn.logsumexp(x, axis=1, keepdims=True)

  @case()
  def random_keys(x):
    key = jax.random.key(3)
    return x + jax.random.normal(key, x.shape)

  @case()
  def gather_scatter(x):
    return x.at[0].add(x[1]) + jnp.take(x, np.array([0, 1]), axis=0)


def references(case):
  """Refs that vary from the beginning."""

  @case()
  def ref_straight(x):
    ref = jax.new_ref(cast(jnp.zeros(4)))
    for a in x:
      ref[...] = jnp.sin(a) + ref[...]
    return ref[...]

  @case()
  def ref_in_loop(x):
    ref = jax.new_ref(cast(jnp.zeros(4)))
    def body(c, a):
      ref[...] += jnp.sin(a) * c
      return jnp.cos(c) * a, c
    lax.scan(body, x[0], x)
    return ref[...]


def plain(case):
  """Without shard_map."""

  @case(sharded=False)
  def plain_loops(x):
    def outer(c, a):
      c = lax.while_loop(lambda s: s[0].sum() < 3., lambda s: (s[0] + a, s[1]),
                         (c, a))[0]
      c = lax.fori_loop(0, 3, lambda i, d: d * .5 + a, c)
      return lax.cond(c.sum() > 0, jnp.sin, jnp.cos, c), c
    return lax.scan(outer, x[0], x)

  @case(sharded=False)
  def plain_nest(x):
    def nest(level, c):
      if not level:
        return jnp.sin(c) * x[0]
      return lax.scan(lambda d, _: (nest(level - 1, d), None), c, None,
                      length=2)[0]
    return nest(5, x[0])

  @case(sharded=False)
  def plain_switch(x):
    f = lambda c: lax.switch(1, [jnp.sin, jnp.cos, jnp.tanh], c)
    return f(f(f(x)))

  @case(sharded=False)
  def plain_gradient(x):
    f = lambda x: lax.scan(lambda c, a: (jnp.sin(c) * a, c), x[0], x)[0].sum()
    return jax.grad(f)(x)

  @case(sharded=False)
  def plain_arithmetic(x):
    for _ in range(30):
      x = jnp.sin(x) * 2. + x
    return x

  @case(sharded=False)
  def many_jits(x):
    f = jax.jit(lambda a: a * 2.)
    for _ in range(30):
      x = f(x)
    return x


def programs():
  case = Cases()
  refs = [references] if hasattr(jax, 'new_ref') else []
  for group in (arithmetic, control_flow, transformations, *refs, plain):
    group(case)
  return case.programs


def counted(f):
  """The steps that the interpreter takes for ``f()``, and its result.

  The steps are the same on any machine.
  """
  steps = 0
  def trace(frame, event, _):
    nonlocal steps
    frame.f_trace_opcodes = True
    steps += event == 'opcode'
    return trace
  sys._getframe().f_trace_opcodes = True  # Python 3.12 wants it to begin with
  sys.settrace(trace)
  try:
    result = f()
  finally:
    sys.settrace(None)
  return steps, result


def worker():
  """Answers lines on standard input: the name of a program, or text NAME."""
  cases = programs()
  print(json.dumps(list(cases)), flush=True)
  gc.disable()
  for line in sys.stdin:
    kind, name = line.split()
    f, args = cases[name]
    g = functools.wraps(f)(lambda *args: f(*args))
    if kind == 'text':
      texts = [str(jax.make_jaxpr(g)(*args)), jax.jit(g).lower(*args).as_text()]
      texts = [re.sub("0x[0-9a-f]+", "0x", t) for t in texts]  # addresses
      answer = [hashlib.sha256(t.encode()).hexdigest() for t in texts]
      gc.collect()
    elif kind == 'count':
      answer, _ = counted(lambda: jax.make_jaxpr(g)(*args))
    else:
      start = time.thread_time_ns()
      jax.make_jaxpr(g)(*args)
      answer = time.thread_time_ns() - start
    print(json.dumps(answer), flush=True)


class Side:
  """One of the two processes."""

  def __init__(self, python, path=None):
    env = dict(os.environ, PYTHONHASHSEED='0')
    if path:
      env['PYTHONPATH'] = path
    self.process = subprocess.Popen(
        [python, __file__, '--worker'], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True, env=env)
    self.names = self.answer()

  def answer(self):
    return json.loads(self.process.stdout.readline())

  def ask(self, kind, name):
    self.process.stdin.write(f'{kind} {name}\n')
    self.process.stdin.flush()
    return self.answer()


def compare(pristine):
  sides = [Side(pristine), Side(sys.executable, os.environ.get('MENDED'))]
  print('program                  pristine      time    steps   jaxpr'
        '   lowered')
  for name in sides[0].names:
    same = [a == b for a, b in zip(*(s.ask('text', name) for s in sides))]
    steps = [min(s.ask('count', name) for _ in range(2)) for s in sides]
    best = [float('inf')] * 2
    for _ in range(ROUNDS):
      for n, side in enumerate(sides):
        best[n] = min(best[n], side.ask('time', name))
    print(f'{name:22s} {best[0] / 1e6:8.2f} ms {best[1] / best[0]:7.3f} x '
          f'{steps[1] / steps[0]:6.4f} x   '
          f'{"same" if same[0] else "DIFFER"}    '
          f'{"same" if same[1] else "DIFFER"}', flush=True)


if __name__ == '__main__':
  if sys.argv[1] == '--worker':
    worker()
  else:
    compare(sys.argv[1])
