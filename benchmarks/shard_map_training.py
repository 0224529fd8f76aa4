# SPDX-License-Identifier: Apache-2.0
"""A small data-parallel training step: mended against pristine.

  python benchmarks/shard_map_training.py PRISTINE_PYTHON MENDED_PYTHON

Each argument is a Python that has that jax, or PYTHON:FOLDER for a Python with
FOLDER put first on its path (what `build.py apply` writes). The two run in
turn, in processes of their own. Printed: the processor time to trace and
lower, to compile, and of a step, with the ratio mended over pristine, and
whether the lowered texts are equal. The ratio of a pair of neighbouring runs
is taken before the median, so that a busy machine disturbs both sides alike.

The cotangent varies as the loss does, by hand, because pristine 0.6.0 refuses
value_and_grad itself.
"""
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time

ROUNDS = 7
LIMIT = 1.02


def worker():
  import jax
  import jax.numpy as jnp
  from jax.sharding import Mesh, PartitionSpec as P
  import numpy as np
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
  params = {"w1": jnp.full((64, 128), 0.01), "b1": jnp.zeros(128),
            "w2": jnp.full((128, 8), 0.01), "b2": jnp.zeros(8)}
  x, y = jnp.ones((256, 64)), jnp.ones((256, 8))

  def predict(p, x):
    h = jax.nn.relu(x @ p["w1"] + p["b1"])
    return jax.nn.log_softmax(h @ p["w2"] + p["b2"])

  def step(p, x, y):
    def loss(p):
      return -jnp.mean(jnp.sum(predict(p, x) * y, -1))
    value, pull = jax.vjp(loss, p)
    grads, = pull(value * 0. + 0.25)
    new = jax.tree.map(lambda p, g: p - 0.1 * g, p, grads)
    return new, jax.lax.psum(value, "data")

  specs = (P(), P("data"), P("data"))
  make = lambda: jax.jit(shard_map(
      lambda *a: step(*a), mesh=mesh, in_specs=specs, out_specs=(P(), P())))
  lowered = make().lower(params, x, y)  # warms the caches of jax itself
  lower, compile_, run = [], [], []
  for _ in range(5):
    jax.clear_caches()
    start = time.process_time()
    lowered = make().lower(params, x, y)
    lower.append(time.process_time() - start)
  start = time.process_time()
  compiled = lowered.compile()
  compile_.append(time.process_time() - start)
  for _ in range(200):
    start = time.process_time()
    jax.block_until_ready(compiled(params, x, y))
    run.append(time.process_time() - start)
  text = hashlib.sha256(lowered.as_text().encode()).hexdigest()
  print(json.dumps({"text": text, "version": jax.__version__,
                    "lower": min(lower), "compile": min(compile_),
                    "run": min(run)}))


def measure(python):
  python, _, folder = python.partition(":")
  env = dict(os.environ, JAX_PLATFORMS="cpu",
             XLA_FLAGS="--xla_force_host_platform_device_count=8")
  if folder:
    env["PYTHONPATH"] = folder
  out = subprocess.run([python, os.path.abspath(__file__), "--worker"],
                       env=env, check=True, stdout=subprocess.PIPE,
                       cwd="/").stdout
  return json.loads(out.splitlines()[-1])


def main(pristine, mended):
  pairs = []
  for i in range(ROUNDS):
    order = [pristine, mended] if i % 2 else [mended, pristine]
    results = [measure(p) for p in order]
    pairs.append(results if i % 2 else results[::-1])
  same = all(a["text"] == b["text"] for a, b in pairs)
  print(f"jax {pairs[0][0]['version']}; lowered text",
        "equal" if same else "DIFFERS")
  for key in ("lower", "compile", "run"):
    ratio = statistics.median(b[key] / a[key] for a, b in pairs)
    before, after = (min(p[i][key] for p in pairs) * 1e3 for i in (0, 1))
    print(f"{key:8} pristine {before:9.3f} ms  mended {after:9.3f} ms"
          f"  ratio {ratio:.3f} (limit {LIMIT})")
  return 0 if same else 1


if __name__ == "__main__":
  if sys.argv[1:] == ["--worker"]:
    worker()
  elif len(sys.argv) == 3:
    sys.exit(main(*sys.argv[1:]))
  else:
    sys.exit(__doc__)
