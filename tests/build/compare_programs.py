# SPDX-License-Identifier: Apache-2.0
"""The programs that `compare` is shown on, and a Python to run it with."""

import ast
import json
import os
import subprocess

from conftest import OUTER, ROOT, write
from mend.editing import patches
from mend.proof import environments
from mend.releases import bases, interpreters
from packaging.version import Version
import pytest

HEAD = """
import jax, jax.numpy as jnp, sys
from jax import lax
from jax.sharding import PartitionSpec as P
mesh = jax.sharding.Mesh(jax.devices("cpu")[:4], "x")
try:
  shard_map = jax.shard_map
except AttributeError:
  from jax.experimental.shard_map import shard_map
"""
# README's program.
LOOP = HEAD + """
def loss(w, x):
  steps = lax.while_loop(lambda n: n < x[0], lambda n: n + 1, 0.0)
  return lax.psum(w * steps, "x")
f = shard_map(loss, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
print(*jax.jit(jax.value_and_grad(f))(1.0, jnp.arange(4.0)))
"""
# Two such gradients, one of them of a few kilobytes.
SIZES = HEAD + """
def loss(w, x):
  steps = lax.while_loop(lambda n: n < x[0], lambda n: n + 1, 0.0)
  return lax.psum(jnp.sum(w) * steps, "x")
f = shard_map(loss, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
for w in 1., jnp.ones(999):
  jax.jit(jax.grad(f))(w, jnp.arange(4.0))
"""
# A training step in which stock loses the gradient of a penalty: each device
# weighs it by as many steps as it has taken.
TRAINING = HEAD + """
def model(params, x):
  for w in params:
    x = jnp.tanh(x @ w)
  return x

def loss(params, x, y):
  return jnp.mean((model(params, x) - y) ** 2)

def local(params, x, y):
  n = jnp.float32(lax.axis_index("x") + 1)
  steps = lax.while_loop(lambda s: s < n, lambda s: s + 1, 0.0)
  penalty = lambda p: .1 * sum(jnp.sum(w ** 2) for w in p)
  total = lambda p: lax.psum(loss(p, x, y), "x") + lax.psum(
      penalty(p) * steps, "x")
  grads = jax.grad(total)(params)
  return jax.tree.map(lambda p, g: p - .1 * g, params, grads)

@jax.jit
def step(params, x, y):
  return shard_map(local, mesh=mesh, in_specs=(P(), P("x"), P("x")),
                   out_specs=P())(params, x, y)

x = jnp.linspace(-1, 1, 32).reshape(8, 4)
params = [jnp.eye(4) * .5, jnp.ones((4, 4)) * .1]
for _ in range(3):
  params = step(params, x, x ** 2)
print([float(p.sum()) for p in params])
"""
# Each device takes steps of its own on data that all have, as many as it is
# given, and gives the gradient on its own data there. Their mean is taken by
# hand. Stock believes that the devices have the same parameters, and sums.
FLAX = HEAD + """
import flax.linen as nn
import optax

class Net(nn.Module):
  @nn.compact
  def __call__(self, x):
    return nn.Dense(1)(nn.tanh(nn.Dense(8)(x)))[:, 0]

def loss(params, x, y):
  return jnp.mean((net.apply(params, x) - y) ** 2)

def gradient(params, steps, public, x, y):
  step = lambda _, p: jax.tree.map(
      lambda w, g: w - .1 * g, p, jax.grad(loss)(p, *public))
  own = lax.fori_loop(0, steps[0], step, params)
  return lax.pmean(jax.grad(loss)(own, x, y), "x")

net, optimizer = Net(), optax.adam(.01)
x = jnp.linspace(-1, 1, 32).reshape(16, 2)
y = jnp.sum(x ** 2, 1)
params = jax.jit(net.init)(jax.random.key(0), x)
state = jax.jit(optimizer.init)(params)
mean = jax.jit(shard_map(gradient, mesh=mesh, in_specs=(
    P(), P("x"), P(), P("x"), P("x")), out_specs=P()))

@jax.jit
def update(grads, params, state):
  updates, state = optimizer.update(grads, state)
  return optax.apply_updates(params, updates), state, optax.global_norm(grads)

for _ in range(3):
  grads = mean(params, jnp.arange(4), (x[:4], y[:4]), x, y)
  params, state, norm = update(grads, params, state)
  print(float(norm))
"""
SAME = HEAD + """
f = jax.jit(lambda x: jnp.sin(x) @ x)
for n in range(3):
  print(float(f(jnp.ones((8, 8)) * n).sum()), sys.argv[1:])
print(sys.stdin.read())
"""
RANDOM = HEAD + "import os\nprint(jnp.sin(float(os.getpid())))\n"
HANGS = HEAD + """
def loss(x, w):
  return lax.cond(lax.axis_index("x") == 0, lambda: x * w, lambda: x).sum()
g = jax.jit(shard_map(jax.grad(loss, 1), mesh=mesh, in_specs=(P("x"), P()),
                      out_specs=P()))
print(g(jnp.arange(4.), jnp.float32(2.)))
"""
SLEEPS = HEAD + "import time\ntime.sleep(300)\n"
COMPUTE_ON = HEAD + """
from jax.experimental.compute_on import compute_on
def host(f):
  if jax.__version_info__ < (0, 11, 1):
    return compute_on("device_host")(f)
  return compute_on(f, compute_type="device_host",
                    out_memory_spaces=jax.memory.Space.Device)
f = host(jax.jit(lambda x: x * 2))
f.lower(jnp.arange(4.))
print("lowered", jax.jit(lambda x: f(x) + 1)(jnp.arange(4.)))
"""
# On stock from 0.10.2 on the copy shares memory with the original.
DLPACK = HEAD + """
import numpy as np
room = np.zeros(4096 + 64, np.uint8)
start = -room.ctypes.data % 64
a = room[start:start + 4096].view(np.float32)
b = jnp.from_dlpack(a, copy=True)
a[:] = 1
print(b.sum())
"""
EXPORT = HEAD + """
from jax import export
e = export.export(jax.jit(lambda d: d[1] + 1))({1: jnp.arange(3.)})
print(export.deserialize(e.serialize()).call({1: jnp.arange(3.)}))
"""
# Digests of arrays that differ by signs, conjugates and factors: of each dtype,
# 1 to 5 long; and of large ones. Then a value that became varying.
DIGESTS = """
import itertools, tempfile
import numpy as np
from jax_mend import differences, values

store = values.Store(tempfile.mkdtemp(dir="."), 0)
for kind, length in itertools.product("f2 f4 f8 c8 c16 i1 i4 u8 ?".split(),
                                      range(1, 6)):
  x = np.arange(1, length + 1).astype(kind)
  others = [x, x[::-1], ~x if kind == "?" else -x, x * x + x, 2 * x, 4 * x]
  if x.dtype.kind == "c":
    others += [x + 1j, (x + 1j).conj()]
  if kind not in "?u8":
    others += [x * np.array(s).astype(kind)
               for s in itertools.product((1, -1), repeat=length)]
  distinct = {(str(o.dtype), o.tobytes()) for o in others}
  assert len({store.digest(o) for o in others}) == len(distinct), (kind, length)
for count in (1, 2, 3):
  x = np.ones(4096 * count)
  assert len({store.digest(x * n) for n in (1, -1, 2, 4, 8)}) == 5
assert store.digest(np.zeros(2)) != store.digest(-np.zeros(2))
assert store.digest(np.zeros((2, 3))) != store.digest(np.zeros((3, 2)))

found = differences.Difference()
kept = differences.Values([], differences.Tolerance())
once = [[n, [[0, 1]], "float32[1]:a"] for n in range(4)]
each = [[n, [[n, n + 1]], "float32[1]:a"] for n in range(4)]
kept.compare(found, "", once, each)
assert not found.unequal
each[2][2] = "float32[1]:b"
kept.compare(found, "", once, each)
assert found.unequal and found.beyond and "device 2" in found.where
print("all told apart")
"""
WORKERS = HEAD.partition("mesh =")[0] + """
jax.distributed.initialize(f"localhost:{sys.argv[2]}", 2, int(sys.argv[1]))
mesh = jax.sharding.Mesh(jax.local_devices()[:4], "x")
""" + LOOP.partition('"x")\n')[2].replace(
    "jax.value_and_grad(f)", "jax.grad(f) if int(sys.argv[1]) else f").replace(
        "print(*", "print(")


def ordinary():
  """The program of jax_mend.ordinary."""
  text = (ROOT / "live/jax_mend/ordinary.py").read_text(encoding="utf-8")
  (found,) = [node for node in ast.parse(text).body
              if isinstance(node, ast.Assign)]
  return ast.literal_eval(found.value)


class Runner:
  """A Python with a stock jax and jax-mend; it runs a comparison once.

  Args:
    base: the release.
    work: a folder.
    kind: which of build/requirements/*.txt it has.
  """

  def __init__(self, base, work, kind="test"):
    self.python = environments.with_jax_mend(
        base, patches.load(), kind=kind,
        python=interpreters.for_base(base, None, lowest=True))
    self.work = work
    self._found = {}

  def begin(self, *args, **env):
    """Starts this Python, with a pipe for its standard input."""
    settings = {k: v for k, v in os.environ.items()
                if not k.startswith(("JAX_", "PYTHONPATH"))}
    return subprocess.Popen(
        [self.python, *map(str, args)], cwd=self.work, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**settings, **environments.jax_mend_settings(self.python),
             "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1",
             "XLA_FLAGS": "--xla_force_host_platform_device_count=4", **env})

  def run(self, *args, stdin="", **env):
    """Runs it; with None for `stdin` the pipe stays open."""
    process = self.begin(*args, **env)
    if stdin is None:
      out, err = process.stdout.read(), process.stderr.read()
      process.stdin.close()
    else:
      out, err = process.communicate(stdin, timeout=300)
    return subprocess.CompletedProcess(args, process.wait(), out, err)

  def compare(self, program, *options, code, args=(), **settings):
    """The report on a program, and its facts."""
    key = program, options, args, *settings.items()
    if key not in self._found:
      script = write(self.work / "program.py", program)
      done = self.run("-m", "jax_mend", "compare", "--json", "facts.json",
                      *options, script.name, *args, **settings)
      assert done.returncode in (0, 1, 2) and done.stdout, done.stderr
      self._found[key] = done.stdout, json.loads(
          (self.work / "facts.json").read_text("utf-8"))
    said, facts = self._found[key]
    assert facts["code"] == code, said
    assert len(said.splitlines()) <= 40
    assert facts["runs"] <= 8
    return said, facts


def newest(work):
  """A runner of the release that a run of everything is for, or the newest.

  Stock jax before 0.8.2 refuses some of the programs; of a run for these it is
  the newest that this Python supports.
  """
  version = os.environ.get("MEND_TEST_BASE", bases.all_bases()[-1].version)
  if Version(version) < Version("0.8.2"):
    version = bases.default_base().version
  with pytest.MonkeyPatch.context() as patch:
    patch.setenv("MEND_CACHE", str(OUTER))
    return Runner(bases.get(version), work)


def hold_same(runner):
  """Fails unless programs that no fix concerns are recorded and the same.

  With the program whose functions are no reason for a difference.
  """
  said, facts = runner.compare(SAME + ordinary(), code=0, args=("a", "--b"),
                               stdin="given to both")
  assert said.startswith("The same: no fix concerns this program.")
  row = next(r for r in facts["programs"] if "lambda" in r["name"])
  assert row["kind"] == "same" and row["line"].startswith("program.py:")
  assert facts["stock"]["programs"] == facts["mended"]["programs"] > 1
  assert facts["runs"] == 2
