# SPDX-License-Identifier: Apache-2.0
"""What feeding only the parameters that exist saves, and what the map costs.

  python3 benchmarks/parameter_map.py

with a mended jax. Two measurements, each against today's way in the same run:

1. A function of 64 arrays of 4 MiB of which it reads 4, called through jaxlib's
   raw client from host memory: fed by the map, and lowered with
   keep_unused=True and fed everything, as PyTorch/XLA does.
2. A function of 10,000 arguments of which it reads half: making its parameter
   map, and reading every entry with its path, against lowering it.

Exits with 1 if the map's cost isn't under 1% of lowering, or the bytes handed
over aren't 4/64.
"""

import argparse
import functools
import statistics
import sys
import time

import jax
from jax._src import compiler
from jax._src import xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client as xc
import numpy as np

ARRAYS, USED, SIZE = 64, 4, 1 << 20  # of float32: 4 MiB
ARGUMENTS = 10_000


def raw_compile(lowered):
  backend = xla_bridge.get_backend("cpu")
  code = mlir.module_to_bytecode(lowered.compiler_ir("stablehlo"))
  options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
  if hasattr(backend, "compile_and_load"):
    devices = xc._xla.DeviceList(tuple(backend.devices()[:1]))
    return backend.compile_and_load(code, devices, options)
  return backend.compile(code, options)


def hand_over(value):
  """Copies an array from the host to the client's device."""
  return jax.device_put(value, may_alias=False)


def call(executable, values):
  buffers = [hand_over(v) for v in values]
  results = executable.execute_sharded(buffers)
  return [np.asarray(a) for a, in
          results.disassemble_into_single_device_arrays()]


def _feed_and_call(executable, lowered, args):
  return call(executable, lowered.parameter_values(*args))


def seconds(f, repeat):
  times = []
  for _ in range(repeat):
    start = time.perf_counter()
    f()
    times.append(time.perf_counter() - start)
  return statistics.median(times)


def calls(repeat):
  def f(*arrays):
    return arrays[3] + arrays[17] * arrays[40] - arrays[63]
  rng = np.random.RandomState(0)
  args = [rng.rand(SIZE).astype(np.float32) for _ in range(ARRAYS)]
  rows = []
  for name, options in (("keep_unused=True", dict(keep_unused=True)),
                        ("parameter_map", {})):
    lowered = jax.jit(f, **options).lower(*args)
    executable = raw_compile(lowered)
    values = lowered.parameter_values(*args)
    out, = call(executable, values)
    np.testing.assert_allclose(
        out, args[3] + args[17] * args[40] - args[63], rtol=1e-5,
        atol=1e-6)
    once = functools.partial(_feed_and_call, executable, lowered, args)
    rows.append((name, len(values), sum(v.nbytes for v in values),
                 seconds(once, repeat)))
  print(f"{ARRAYS} arrays of {SIZE * 4 >> 20} MiB, {USED} read: one call from "
        f"host memory, median of {repeat}")
  for name, number, size, took in rows:
    print(f"  {name:18} {number:3} buffers  {size / 2**20:6.0f} MiB  "
          f"{took * 1e3:8.2f} ms")
  (_, _, all_bytes, slow), (_, _, bytes_, fast) = rows
  print(f"  bytes {bytes_ / all_bytes:.4f} (4/64 = {4 / 64:.4f}), "
        f"time {fast / slow:.3f}")
  return bytes_ * ARRAYS == all_bytes * USED


def cost(repeat):
  def f(args):
    return [x + 1 for x in args["some"]]
  x = np.ones(2, np.float32)
  args = {"some": [x] * (ARGUMENTS // 2), "others": [x] * (ARGUMENTS // 2)}
  lowerings, makings, readings, feedings = [], [], [], []
  for _ in range(repeat):
    start = time.perf_counter()
    lowered = jax.jit(lambda a: f(a)).lower(args)
    lowerings.append(time.perf_counter() - start)
    start = time.perf_counter()
    pmap = lowered.parameter_map
    assert len(pmap.kept_var_idx) == ARGUMENTS // 2
    makings.append(time.perf_counter() - start)
    start = time.perf_counter()
    assert len([p.path for p in pmap]) == ARGUMENTS // 2
    readings.append(time.perf_counter() - start)
    start = time.perf_counter()
    lowered.parameter_values(args)
    feedings.append(time.perf_counter() - start)
  lowering = statistics.median(lowerings)
  print(f"{ARGUMENTS} arguments, half of them read; median of {repeat}")
  print(f"  lowering                        {lowering * 1e3:9.2f} ms")
  shares = []
  for name, times in (("parameter_map", makings),
                      ("every entry with its path", readings),
                      ("parameter_values", feedings)):
    took = statistics.median(times)
    shares.append(took / lowering)
    print(f"  {name:30}  {took * 1e3:9.2f} ms  {shares[-1]:7.2%}")
  return shares[0] < 0.01


def main():
  parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
  parser.add_argument("--repeat", type=int, default=15)
  args = parser.parse_args()
  jax.config.update("jax_platforms", "cpu")
  print(f"jax {jax.__version__}, jaxlib {jax.lib.__version__}")
  good = [calls(args.repeat), cost(max(3, args.repeat // 3))]
  return 0 if all(good) else 1


if __name__ == "__main__":
  sys.exit(main())
