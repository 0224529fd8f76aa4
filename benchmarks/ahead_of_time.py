# SPDX-License-Identifier: Apache-2.0
"""From the start of a process to the first result, in three ways.

    python benchmarks/ahead_of_time.py [--rounds=5]

A cold `jax.jit`, `jax.jit` with a warm compilation cache, and a stored
executable. Each in processes of its own, in turn, so that a busy machine
disturbs all alike; ``import`` only starts jax, which is in all of them.
Wall time includes the interpreter's start and the import of jax.
"""
import argparse
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time

LAYERS, WIDTH = 24, 128


def network(weights, x):
  import jax
  import jax.numpy as jnp
  for w in weights:
    x = jax.nn.gelu(x @ w) + x
    x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1)
  return jnp.linalg.norm(x)


def arguments():
  import numpy as np
  rng = np.random.default_rng(0)
  weights = rng.normal(size=(LAYERS, WIDTH, WIDTH)).astype(np.float32) / WIDTH
  return list(weights), rng.normal(size=(16, WIDTH)).astype(np.float32)


def store(path):
  import jax
  from jax.experimental import serialize_executable
  compiled = jax.jit(network).lower(*arguments()).compile()
  with open(path, 'wb') as f:
    pickle.dump(serialize_executable.serialize(compiled), f)


def run(way, folder):
  """The worker: prints the result."""
  import jax
  if way == 'import':
    return jax.devices()
  if way == 'stored':
    from jax.experimental import serialize_executable
    with open(os.path.join(folder, 'stored'), 'rb') as f:
      call = serialize_executable.deserialize_and_load(*pickle.load(f))
  else:
    if way == 'cached':
      jax.config.update('jax_compilation_cache_dir', folder)
      jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)
      jax.config.update('jax_persistent_cache_min_entry_size_bytes', -1)
    call = jax.jit(network)
  print(float(call(*arguments())))


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument('--rounds', type=int, default=5)
  rounds = parser.parse_args().rounds
  times = {'import': [], 'cold': [], 'cached': [], 'stored': []}
  results = set()
  with tempfile.TemporaryDirectory() as folder:
    worker = [sys.executable, os.path.abspath(__file__), '--worker']
    subprocess.run([*worker, 'store', folder], check=True)
    subprocess.run([*worker, 'cached', folder], check=True,
                   stdout=subprocess.DEVNULL)
    for _ in range(rounds):
      for way, seconds in times.items():
        start = time.perf_counter()
        ran = subprocess.run([*worker, way, folder], check=True,
                             capture_output=True, text=True)
        seconds.append(time.perf_counter() - start)
        results.update(f'{float(out):.4g}' for out in ran.stdout.split())
  assert len(results) == 1, results
  for way, seconds in times.items():
    print(f'{way}: {statistics.median(seconds):.2f} s '
          f'({min(seconds):.2f} to {max(seconds):.2f})')


if __name__ == '__main__':
  if sys.argv[1:2] == ['--worker']:
    if sys.argv[2] == 'store':
      store(os.path.join(sys.argv[3], 'stored'))
    else:
      run(*sys.argv[2:])
  else:
    main()
