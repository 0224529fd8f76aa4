# SPDX-License-Identifier: Apache-2.0
"""Wheel build and `import jax`, mended against pristine, in one run.

  python3 benchmarks/build_time.py [--base=0.6.0] [--repeats=5]

Prints ratios of medians: the wheel build from a warm cache against pip's
wheel of the pristine source (at most 2), `import jax` (at most 1.02, measured
in turns, as user plus system time of fresh processes), and `import jax` with
jax-mend against the mended wheel's (at most 1.05, its byte code cached).
"""

import argparse
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "build"))

from mend.ground import bootstrap


def wheel_times(base, repeats):
  """Seconds of each build: (mended, pristine)."""
  from mend.editing import patches
  from mend.ground import process
  from mend.releases import interpreters, source
  from mend.trees import tree, wheel
  python = interpreters.for_base(base)
  origin = source.pristine(base)
  mended, pristine = [], []
  for _ in range(repeats):
    with tempfile.TemporaryDirectory() as scratch:
      folder = pathlib.Path(scratch)
      shutil.copytree(origin, folder / "sdist")
      began = time.perf_counter()
      process.run(
          [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps",
           "--no-build-isolation", "--ignore-requires-python", "-w",
           folder / "pip", folder / "sdist"], env=process.same_packages(),
          what="pip wheel", next_step="run it again")
      pristine.append(time.perf_counter() - began)
      began = time.perf_counter()
      result = tree.mended(patches.load(), base, origin)
      tree.write_copy(result, origin, folder / "tree", python)
      wheel.build_tree(folder / "tree", folder / "out")
      mended.append(time.perf_counter() - began)
  return mended, pristine


def import_times(one, other, repeats):
  """CPU seconds of `import jax` of two Pythons."""
  from mend.proof import environments
  times = {one: [], other: []}
  env = {**os.environ, "JAX_PLATFORMS": "cpu"}
  for i in range(repeats + 1):
    for python, seconds in times.items():
      before = resource.getrusage(resource.RUSAGE_CHILDREN)
      subprocess.run(
          [python, "-c", "import jax"], check=True,
          env={**env, **environments.jax_mend_settings(python)},
          cwd=tempfile.gettempdir())
      after = resource.getrusage(resource.RUSAGE_CHILDREN)
      if i:  # the first run fills the caches
        seconds.append(after.ru_utime + after.ru_stime
                       - before.ru_utime - before.ru_stime)
  return times[one], times[other]


def main():
  from mend.ground import report
  from mend.proof import environments
  from mend.releases import bases, interpreters
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--base", default=None)
  parser.add_argument("--repeats", type=int, default=5)
  args = parser.parse_args()
  rows = []
  for base in bases.chosen(args.base):
    made = environments.build(base)
    mending = environments.with_jax_mend(
        base, python=interpreters.for_base(base))
    many = 4 * args.repeats
    for what, limit, (mended, pristine) in (
        ("wheel build", 2.0, wheel_times(base, args.repeats)),
        ("import jax", 1.02, import_times(made.mended, made.pristine, many)),
        ("jax-mend, wheel", 1.05, import_times(mending, made.mended, many))):
      ratio = statistics.median(mended) / statistics.median(pristine)
      rows.append((base.version, what, f"{statistics.median(pristine):.3f} s",
                   f"{statistics.median(mended):.3f} s", f"{ratio:.3f}",
                   f"{limit}"))
  print(report.table(
      ("base", "what", "pristine", "mended", "ratio", "at most"), rows))


if __name__ == "__main__":
  bootstrap.ensure(str(pathlib.Path(__file__).resolve()))
  main()
