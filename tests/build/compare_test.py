# SPDX-License-Identifier: Apache-2.0
"""`python -m jax_mend compare`, on a release with jax-mend."""

import concurrent.futures
import json
import os
import socket
import subprocess
import textwrap

from conftest import ROOT, write
from mend.editing import patches
from mend.proof import alone, environments
from mend.releases import bases, interpreters
import pytest

_NEWEST = bases.get(os.environ.get("MEND_TEST_BASE",
                                   bases.all_bases()[-1].version))
_HEAD = """
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
LOOP = _HEAD + """
def loss(w, x):
  steps = lax.while_loop(lambda n: n < x[0], lambda n: n + 1, 0.0)
  return lax.psum(w * steps, "x")
f = shard_map(loss, mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
print(*jax.jit(jax.value_and_grad(f))(1.0, jnp.arange(4.0)))
"""
# A training step in which stock loses the gradient of a penalty: each device
# weighs it by as many steps as it has taken.
TRAINING = _HEAD + """
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
SAME = _HEAD + """
f = jax.jit(lambda x: jnp.sin(x) @ x)
for n in range(3):
  print(float(f(jnp.ones((8, 8)) * n).sum()), sys.argv[1:])
print(sys.stdin.read())
"""
RANDOM = _HEAD + "import os\nprint(jnp.sin(float(os.getpid())))\n"
HANGS = _HEAD + """
def loss(x, w):
  return lax.cond(lax.axis_index("x") == 0, lambda: x * w, lambda: x).sum()
g = jax.jit(shard_map(jax.grad(loss, 1), mesh=mesh, in_specs=(P("x"), P()),
                      out_specs=P()))
print(g(jnp.arange(4.), jnp.float32(2.)))
"""
COMPUTE_ON = _HEAD + """
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
DLPACK = _HEAD + """
import numpy as np
a = np.arange(6.).astype(np.float32)
a.flags.writeable = False
print(jnp.from_dlpack(a).sum())
"""
EXPORT = _HEAD + """
from jax import export
e = export.export(jax.jit(lambda d: d[1] + 1))({1: jnp.arange(3.)})
print(export.deserialize(e.serialize()).call({1: jnp.arange(3.)}))
"""


class Runner:
  """A Python with a stock jax and jax-mend."""

  def __init__(self, base, work):
    self.python = environments.with_jax_mend(
        base, patches.load(),
        python=interpreters.for_base(base, None, lowest=True))
    self.work = work

  def run(self, *args, stdin="", **env):
    settings = {k: v for k, v in os.environ.items()
                if not k.startswith(("JAX_", "PYTHONPATH"))}
    return subprocess.run(
        [self.python, *map(str, args)], cwd=self.work, text=True,
        capture_output=True, check=False, timeout=300, input=stdin, env={
            **settings, **environments.jax_mend_settings(self.python),
            "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1",
            "XLA_FLAGS": "--xla_force_host_platform_device_count=4", **env})

  def compare(self, program, *options, code, args=(), **settings):
    """The report on a program, and its facts."""
    script = write(self.work / "program.py", program)
    done = self.run("-m", "jax_mend", "compare", "--json", "facts.json",
                    *options, script.name, *args, **settings)
    assert done.returncode == code, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) <= 40
    facts = json.loads((self.work / "facts.json").read_text("utf-8"))
    assert facts["code"] == code and facts["runs"] <= 7
    return done.stdout, facts


@pytest.fixture
def runner(kept_cache, tmp_path):
  del kept_cache
  return Runner(_NEWEST, tmp_path)


@pytest.mark.parametrize("base", alone.newest_of_lines(bases.all_bases()),
                         ids=lambda b: b.version)
def test_a_program_that_no_fix_concerns(base, kept_cache, tmp_path):
  """On each line: programs and calls are recorded, stock and mended."""
  del kept_cache
  said, facts = Runner(base, tmp_path).compare(
      SAME, code=0, args=("a", "--b"), stdin="given to both")
  assert said.startswith("The same: no fix concerns this program.")
  rows = facts["programs"]
  (row,) = [r for r in rows if "lambda" in r["name"]]
  assert row["kind"] == "same" and row["line"].startswith("program.py:")
  assert facts["stock"]["programs"] == facts["mended"]["programs"] > 1
  assert facts["runs"] == 2


def test_readmes_program(runner):
  said, facts = runner.compare(LOOP, code=1)
  assert "6.0 0.0" in said and "6.0 6.0" in said
  (row,) = [r for r in facts["programs"] if r["name"] == "loss"]
  assert row["kind"] == "other values" and row["absolute"] == 6.
  assert "varying/loops" in row["why"] and "docs/varying.md" in row["why"]
  assert "other values: loss at program.py:" in said


def test_the_patch_that_is_named_brings_back_the_stock_code(runner):
  _, facts = runner.compare(HANGS, "--timeout=10", code=1)
  (row,) = [r for r in facts["programs"] if r["kind"] != "same"]
  assert row["why"] == "varying/branches (docs/varying.md)"
  said, facts = runner.compare(HANGS, "--timeout=10", code=0,
                               JAX_MEND="-varying/branches")
  assert {r["kind"] for r in facts["programs"]} == {"same"}
  assert said.startswith("The same: it hangs on both.")


def test_training(runner):
  _, facts = runner.compare(TRAINING, code=1)
  row = next(r for r in facts["programs"] if r["name"] == "step")
  assert row["kind"] == "other values" and row["relative"] > .01
  assert "varying/" in row["why"]


def test_a_program_that_hangs_on_stock(runner):
  said, facts = runner.compare(HANGS, "--timeout=10", code=1)
  assert "stock   hung" in said and "in loss, called at program.py:" in said
  assert facts["stock"]["status"] is None and facts["mended"]["status"] == 0
  assert any("program.py" in line for line in facts["stock"]["stacks"])
  (row,) = [r for r in facts["programs"] if r["kind"] != "same"]
  assert row["kind"] == "only mended" and row["note"] == "hung on stock"


def test_a_program_that_is_not_the_same_twice(runner):
  said, facts = runner.compare(RANDOM, code=2)
  assert "isn't the same twice" in said
  assert any(r["again"] for r in facts["programs"])
  assert not any(r["why"] for r in facts["programs"])


@pytest.mark.parametrize("program, error", [
    (COMPUTE_ON, "AttributeError"), (DLPACK, ""), (EXPORT, "TypeError")])
def test_what_is_refused_on_stock(runner, program, error):
  said, facts = runner.compare(program, code=1 if error else 0)
  assert facts["stock"]["error"].get("type", "") == error
  assert facts["mended"]["status"] == 0
  if error:
    assert f"{error} at program.py:" in said


def test_values_beyond_the_store_are_summed_up(runner):
  _, facts = runner.compare(LOOP, "--store=2", code=1)
  (row,) = [r for r in facts["programs"] if r["name"] == "loss"]
  assert "beyond --store: largest" in row["note"]
  assert row["kind"] == "other values"


def test_a_tolerance(runner):
  _, facts = runner.compare(LOOP, "--atol=7", code=1)
  (row,) = [r for r in facts["programs"] if r["name"] == "loss"]
  assert row["kind"] == "other code, same values" and row["absolute"] == 6.


def test_pytest(runner):
  write(runner.work / "some_test.py", LOOP.partition("print")[0] + """
def test_value():
  assert f(1.0, jnp.arange(4.0)) == 6

def test_gradient():
  assert jax.jit(jax.grad(f))(1.0, jnp.arange(4.0)) == 6
""")
  done = runner.run("-m", "pytest", "-p", "jax_mend", "--mend-compare", "-q",
                    "-p", "no:cacheprovider", "some_test.py")
  assert done.returncode == 1, done.stderr
  assert ("some_test.py::test_gradient: failed on stock, passed mended"
          ) in done.stdout
  assert "loss at some_test.py:" in done.stdout


def test_a_function(runner):
  inside = LOOP.partition("mesh =")[2].partition("f = ")
  program = LOOP.partition("mesh =")[0] + textwrap.indent(
      "mesh =" + inside[0] + inside[1] + inside[2].rpartition("print")[0],
      "  ").replace("  mesh", "def gradient(x):\n  mesh", 1) + """
  return jax.jit(jax.grad(f))(1.0, x)

import jax_mend
found = jax_mend.compare(gradient, jnp.arange(4.))
print("code", found.code())
try:
  jax_mend.compare(lambda: sys.stdin, sys.stdin)
except Exception as e:
  print(e)
"""
  done = runner.run(write(runner.work / "notebook.py", program))
  assert done.returncode == 0, done.stderr
  assert "other values: loss" in done.stdout and "code 1" in done.stdout
  assert "write a script" in done.stdout


WORKERS = _HEAD.partition("mesh =")[0] + """
jax.distributed.initialize(f"localhost:{sys.argv[2]}", 2, int(sys.argv[1]))
mesh = jax.sharding.Mesh(jax.local_devices()[:4], "x")
""" + LOOP.partition('"x")\n')[2].replace(
    "jax.value_and_grad(f)", "jax.grad(f) if int(sys.argv[1]) else f").replace(
        "print(*", "print(")


def test_two_processes_are_compared_rank_by_rank(runner):
  """Only rank 1 differs; rank 0 runs as often, as their runs need both."""
  write(runner.work / "workers.py", WORKERS)
  with socket.socket() as found:
    found.bind(("localhost", 0))
    port = found.getsockname()[1]
  with concurrent.futures.ThreadPoolExecutor() as pool:
    ranks = [pool.submit(
        runner.run, "-m", "jax_mend", "compare", f"--rank={n}/2",
        "--meet=meeting", "--json", f"{n}.json", "workers.py", n, port)
             for n in range(2)]
    done = [rank.result() for rank in ranks]
  assert [d.returncode for d in done] == [0, 1], done
  assert done[0].stdout.startswith("The same")
  assert "other values: loss" in done[1].stdout
  facts = [json.loads((runner.work / f"{n}.json").read_text("utf-8"))
           for n in range(2)]
  assert facts[0]["runs"] == facts[1]["runs"] > 3


def test_what_is_refused(runner):
  done = runner.run("-m", "jax_mend", "compare")
  assert done.returncode == 2 and "nothing to run" in done.stderr
  done = runner.run("-m", "jax_mend", "compare", "x.py", JAX_MEND="0")
  assert done.returncode == 2 and "JAX_MEND=0 is set" in done.stderr
  help_ = runner.run("-m", "jax_mend", "compare", "--help").stdout
  page = (ROOT / "docs/compare.md").read_text("utf-8")
  for option in ("--yes", "--json", "--timeout", "--rtol", "--atol", "--store",
                 "--rank", "--meet"):
    assert option in help_ and option in page, option
