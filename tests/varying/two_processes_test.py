# SPDX-License-Identifier: Apache-2.0
"""Loops and branches in a shard_map over the devices of two processes.

One pair of processes of ``jax.distributed``, with four CPU devices each, runs
every program, and reports what each of its devices holds. NumPy computes the
same from the blocks. A process that hangs, as two do that wait for different
collectives, is killed.
"""
import functools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time

if __name__ == '__main__' and 'MEND_PROCESS' in os.environ:
  os.environ['XLA_FLAGS'] = '--xla_force_host_platform_device_count=4'

# pylint: disable=g-import-not-at-top
from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map

if 'MEND_PROCESS' not in os.environ:
  jax.config.parse_flags_with_absl()

# What pristine JAX says.
NO_RULE_FOR_WHILE = ("^AssertionError: 'NotImplementedError: No replication "
                     r'rule for while\. As a workaround, pass the')
UNEQUAL_TYPES = '^AssertionError: .*must have equal types'

MARK = 'report: '
SILENCE = 10.  # seconds without a report after which processes are killed
IDLE = 3.  # the same where they have not run meanwhile, but waited
RUN = .2  # seconds of a core within IDLE, which a process that works gets
W = np.float32(1.5)


# Programs: of a block of one row of three numbers for each device, and of the
# replicated number W. Each comes with its result by NumPy on all blocks.


def while_loop(x, w):
  def body(c):
    i, total = c
    return i + 1, total + x.sum() * w
  i, total = lax.while_loop(lambda c: c[1] < 10., body, (0, 0.))
  return i.reshape(1), total.reshape(1)


def while_loop_oracle(x):
  def one(row):
    i, total = 0, np.float32(0)
    while total < 10:
      i, total = i + 1, total + row.sum() * W
    return i, total
  i, total = zip(*map(one, x))
  return np.array(i), np.array(total)


def adaptive_step(x, w):
  """The devices agree on the step, so the time is the same on all of them."""
  def body(c):
    t, y = c
    dt = lax.pmin(jnp.min(.4 / (1. + jnp.abs(y))), AXES)
    return t + dt, y - dt * w * y
  t, y = lax.while_loop(lambda c: c[0] < 1., body, (0., x[0]))
  return t, y[None]


def adaptive_step_oracle(x):
  t, y = np.float32(0), x
  while t < 1:
    dt = np.min(.4 / (1 + np.abs(y)))
    t, y = t + dt, y - dt * W * y
  return t, y


def fixed_point(x, w):
  """Goes on until the last device has converged."""
  def body(c):
    i, y, _ = c
    new = jnp.cos(y * x) / (2. * w)
    return i + 1, new, lax.pmax(jnp.max(jnp.abs(new - y)), AXES)
  i, y, _ = lax.while_loop(lambda c: c[2] > 1e-2, body,
                           (0, jnp.zeros_like(w) + 0. * x, 1.))
  return i, y


def fixed_point_oracle(x):
  i, y, error = 0, np.zeros_like(x), 1.
  while error > 1e-2:
    new = np.cos(y * x) / (2 * W)
    i, y, error = i + 1, new, np.max(np.abs(new - y))
  return np.array(i), y


def scan(x, w):
  def step(c, _):
    mean = lax.pmean(c * w, AXES)
    return c + x.sum(), mean
  last, means = lax.scan(step, 0., None, length=4)
  return last.reshape(1), means


def scan_oracle(x):
  sums = x.sum(1)
  return 4 * sums, np.arange(4) * sums.mean() * W


def nested(x, w):
  """A branch in a loop in a loop, all of which devices leave differently."""
  def inner(j, c):
    return lax.cond(c > x.min(), lambda: c - w, lambda: c + x.max())
  def outer(_, c):
    return lax.fori_loop(0, jnp.sum(x > 1.5), inner, c)
  return lax.fori_loop(0, 3, outer, 0.).reshape(1)


def nested_oracle(x):
  def one(row):
    c = np.float32(0)
    for _ in range(3 * np.sum(row > 1.5)):
      c = c - W if c > row.min() else c + row.max()
    return c
  return np.array(list(map(one, x)))


def inner_gradient(x, w):
  """Newton's method: each device stops by itself, on its own derivative."""
  f = lambda y: jnp.sum((y - x) ** 3) + y * w
  def body(c):
    i, y = c
    return i + 1, y - f(y) / jax.grad(f)(y)
  i, y = lax.while_loop(lambda c: (jnp.abs(f(c[1])) > .1) & (c[0] < 30),
                        body, (0, 5.))
  return i.reshape(1), y.reshape(1)


def inner_gradient_oracle(x):
  def one(row):
    f = lambda y: np.sum((y - row) ** 3) + y * W
    i, y = 0, np.float32(5)
    while abs(f(y)) > .1 and i < 30:
      i, y = i + 1, y - f(y) / (np.sum(3 * (y - row) ** 2) + W)
    return i, y
  i, y = zip(*map(one, x))
  return np.array(i), np.array(y)


def cond(x, w):
  y = lax.cond(x.sum() > 5., lambda: x * w, lambda: x)
  return lax.psum(jnp.sum(y * y), AXES)


def cond_gradient_oracle(x):
  big = x[x.sum(1) > 5]
  rest = x[x.sum(1) <= 5]
  value = np.sum((big * W) ** 2) + np.sum(rest ** 2)
  return value, np.sum(2 * big ** 2 * W)


AXES = ('x', 'y')
EACH, ALL = P(AXES), P()
PROGRAMS = {  # program, out_specs, oracle, whether to differentiate in w
    'while_loop': (while_loop, (EACH, EACH), while_loop_oracle, False),
    'adaptive_step': (adaptive_step, (ALL, EACH), adaptive_step_oracle, False),
    'fixed_point': (fixed_point, (ALL, EACH), fixed_point_oracle, False),
    'scan': (scan, (EACH, ALL), scan_oracle, False),
    'nested': (nested, EACH, nested_oracle, False),
    'inner_gradient': (inner_gradient, (EACH, EACH), inner_gradient_oracle,
                       False),
    'cond_gradient': (cond, ALL, cond_gradient_oracle, True),
}
MESHES = {'one_axis': (4, 1), 'two_axes': (4, 2)}
RUNS = [('while_loop', 'one_axis'), ('while_loop', 'two_axes'),
        ('adaptive_step', 'two_axes'), ('fixed_point', 'one_axis'),
        ('scan', 'two_axes'), ('nested', 'one_axis'),
        ('inner_gradient', 'two_axes'),
        # Last, because processes can wait here forever (jax#40823).
        ('cond_gradient', 'one_axis'), ('cond_gradient', 'two_axes')]


def blocks(n):
  return np.random.RandomState(0).uniform(.5, 2.5, (n, 3)).astype('f')


def make_mesh(shape):
  """Half of the devices in each process, along the first axis or the last."""
  count = shape[0] * shape[1] // 2
  devices = [[d for d in jax.devices() if d.process_index == p][:count]
             for p in range(2)]
  if shape[1] == 2:
    return Mesh(np.array(devices).T, AXES)
  return Mesh(np.array(devices).reshape(shape), AXES)


def run_program(name, shape):
  fun, out_specs, _, differentiate = PROGRAMS[name]
  mesh = make_mesh(shape)
  x = blocks(mesh.size)
  x = jax.make_array_from_callback(
      x.shape, NamedSharding(mesh, P(AXES)), lambda index: x[index])
  w = jax.make_array_from_callback(
      (), NamedSharding(mesh, P()), lambda _: W)
  fun = shard_map(fun, mesh=mesh, in_specs=(P(AXES), P()), out_specs=out_specs)
  if differentiate:
    fun = jax.value_and_grad(fun, 1)
  outs = jax.tree_util.tree_leaves(jax.jit(fun)(x, w))
  order = [d.id for d in mesh.devices.flat]
  return [{order.index(s.device.id): np.asarray(s.data).tolist()
           for s in out.addressable_shards} for out in outs]


def process_main():
  """One of the two processes: a line of JSON for each program."""
  rank, port = int(os.environ['MEND_PROCESS']), os.environ['MEND_PORT']
  jax.config.update('jax_platforms', 'cpu')
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(f'localhost:{port}', num_processes=2,
                             process_id=rank, initialization_timeout=20)
  assert jax.process_count() == 2 and len(jax.devices()) == 8
  for name, mesh in RUNS:
    try:
      report = run_program(name, MESHES[mesh])
    except Exception as e:  # pylint: disable=broad-except
      report = f'{type(e).__name__}: {e}'
    print(MARK + json.dumps([f'{name}_{mesh}', report]) + '\n', end='',
          flush=True)
  os._exit(0)  # not to wait for one another


def free_port():
  with socket.socket() as s:
    s.bind(('localhost', 0))
    return s.getsockname()[1]


def processor_time(child):
  """Seconds that it has run; where the system doesn't say, as if it had."""
  try:
    with open(f'/proc/{child.pid}/stat', encoding='utf-8') as f:
      user, system = f.read().rpartition(')')[2].split()[11:13]
  except OSError:
    return time.monotonic()
  return (int(user) + int(system)) / os.sysconf('SC_CLK_TCK')


def launch():
  """Runs the two processes; each one's reports by program, and other output."""
  children, port = [], str(free_port())
  reports, said, lines = ({}, {}), ([], []), queue.Queue()

  def read(rank, child):
    for line in child.stdout:
      lines.put((rank, line))
    lines.put((rank, None))

  try:
    for rank in range(2):
      env = {**os.environ, 'MEND_PROCESS': str(rank), 'MEND_PORT': port}
      children.append(subprocess.Popen(
          [sys.executable, os.path.abspath(__file__)], env=env, text=True,
          stdout=subprocess.PIPE, stderr=subprocess.STDOUT))
      threading.Thread(target=read, args=(rank, children[rank]),
                       daemon=True).start()
    running, ran = 2, 0.
    said_at = ran_at = time.monotonic()
    while running:
      try:
        rank, line = lines.get(timeout=.5)
        said_at = ran_at = time.monotonic()
      except queue.Empty:
        now, spent = time.monotonic(), sum(map(processor_time, children))
        if spent > ran + RUN:
          ran, ran_at = spent, now
        if now > said_at + SILENCE or now > ran_at + IDLE:
          raise
        continue
      if line is None:
        running -= 1
      elif MARK in line:  # what C++ logs meanwhile may stand on the same line
        (name, report), _ = json.JSONDecoder().raw_decode(
            line, line.index(MARK) + len(MARK))
        reports[rank][name] = report
      else:
        said[rank].append(line)
  except queue.Empty:
    for text in said:
      text.append('killed, after a wait for one another')
  finally:
    for child in children:
      child.kill()
      child.wait()
  return reports, said


@functools.cache
def results():
  """All reports. Tried again, as another program can take the free port."""
  for _ in range(3):
    reports, said = launch()
    if any(reports):
      break
  return reports, [''.join(text[-20:]) for text in said]


class ShardMapDistributedTest(jtu.JaxTestCase):

  @red({
      '<0.6': NO_RULE_FOR_WHILE,
      '>=0.6': '^AssertionError: .*must have equal ',
  }, cases={'program': ['nested', 'while_loop']})
  @red({
      '<0.6': NO_RULE_FOR_WHILE,
      '>=0.6,<0.6.1':
          r"^AssertionError: 'ValueError: unexpected JAX type \(e\.g\. "
          r'shape/dtype\) for argument to vjp function:',
      '>=0.6.1':
          '^AssertionError: "TypeError: while_loop body function carry input '
          'and carry output must have equal',
  }, cases=['inner_gradient_two_axes'])
  @red(UNEQUAL_TYPES, bases='>=0.6', cases=['scan_two_axes'])
  @red('^AssertionError: .*No replication rule for while', bases='<0.6',
       cases=['adaptive_step_two_axes', 'fixed_point_one_axis'])
  # From 0.6 the two processes wait for each other, and are killed.
  @red({
      '<0.6':
          "^AssertionError: 'Exception: The branches of cond produced "
          r'mismatched replication types\. Please open',
      '>=0.6': UNEQUAL_TYPES,
  }, cases={'program': 'cond_gradient'})
  @parameterized.named_parameters(
      *((f'_{program}_{mesh}', program, mesh) for program, mesh in RUNS))
  def test(self, program, mesh):
    name = f'{program}_{mesh}'
    reports, said = results()
    for report, text in zip(reports, said):
      self.assertIn(name, report, f'no report: {text}')
      self.assertNotIsInstance(report[name], str, report[name])
    _, out_specs, oracle, _ = PROGRAMS[program]
    count = int(np.prod(MESHES[mesh]))
    wants = jax.tree_util.tree_leaves(oracle(blocks(count)))
    specs = jax.tree_util.tree_leaves(
        out_specs, is_leaf=lambda s: isinstance(s, P))
    specs += [ALL] * (len(wants) - len(specs))  # of a gradient
    for n, (want, spec) in enumerate(zip(wants, specs)):
      shards = {**reports[0][name][n], **reports[1][name][n]}
      self.assertLen(shards, count)
      for device, got in shards.items():
        expected = want[int(device)][None] if spec == EACH else want
        self.assertAllClose(np.array(got), expected, rtol=1e-4, atol=1e-4,
                            check_dtypes=False, err_msg=f'device {device}')


if __name__ == '__main__':
  if 'MEND_PROCESS' in os.environ:
    process_main()
  absltest.main(testLoader=jtu.JaxTestLoader())
