# SPDX-License-Identifier: Apache-2.0
"""What `python -m jax_mend compare` costs, against the two runs themselves.

    python benchmarks/compare.py

with a Python that has a stock jax and jax-mend. The program is a loop of 100
steps, each of which returns 20 MB. Asserts at most 1.2 times.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

LIMIT, ROUNDS = 1.2, 2
PROGRAM = """
import jax, jax.numpy as jnp

@jax.jit
def step(x):
  return jnp.sin(x) + jnp.tanh(x @ w) * .1

w = jnp.eye(1024) * .5
x = jnp.linspace(-1, 1, 5120 * 1024).reshape(5120, 1024)  # 20 MB
for _ in range(100):
  x = step(x)
x.block_until_ready()
"""


def seconds(*args, **env):
  """Runs a Python, and returns its seconds."""
  began = time.perf_counter()
  subprocess.run([sys.executable, *args], check=True, env={
      **os.environ, "JAX_PLATFORMS": "cpu", **env}, stdout=subprocess.DEVNULL)
  return time.perf_counter() - began


def main():
  with tempfile.TemporaryDirectory() as folder:
    script, facts = (os.path.join(folder, n) for n in ("p.py", "f.json"))
    with open(script, "w", encoding="utf-8") as file:
      file.write(PROGRAM)
    plain, compared = [], []
    for _ in range(ROUNDS):
      plain.append(seconds("-m", "jax_mend", "run", script)
                   + seconds(script, JAX_MEND="0"))
      compared.append(seconds("-m", "jax_mend", "compare", "--json", facts,
                              script))
    with open(facts, encoding="utf-8") as file:
      found = json.load(file)
  ratio = min(compared) / min(plain)
  print(f"two runs {min(plain):.1f} s, compared {min(compared):.1f} s: "
        f"{ratio:.2f} times, {len(found['programs'])} programs")
  assert found["programs"] and found["code"] == 0
  assert ratio <= LIMIT, ratio


if __name__ == "__main__":
  main()
