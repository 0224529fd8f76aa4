# SPDX-License-Identifier: Apache-2.0
"""Runs the random programs of some seeds, and writes down what became of each.

Run by the Python under test. Standard input has one JSON object: "seeds";
"events", the file to write to; "shrink", how many seconds to spend on making a
program that fails smaller, 0 for only saying whether it fails. Each line of
"events" is a JSON object: {"begins": seed}, so that a crash can be told from
what came before; {"seed", "kind", "text", "features", "took"}, where "kind" is
"" for a program that is right; and {"seed", "program"}, a file that shows the
fault, the smallest last.
"""
import gc
import json
import os
import sys
import time
from unittest import mock

import jax

task = json.load(sys.stdin)
if jax.__version_info__ < (0, 6):
  # Its CPU runtime crashes on collectives in nested loops, check on or off.
  os.environ["XLA_FLAGS"] += " --xla_cpu_use_thunk_runtime=false"

from varying.testing import common, fuzz_running, fuzz_shrinking

CONTROL_FLOW = fuzz_running.AS_MENDED or any(
    map(common.ships, ("jax._src.varying.flow", "jax._src.replication.rules")))
OLD = (0, 6) <= jax.__version_info__ < (0, 7)  # its checks object to too much


def write(**record):
  with open(task["events"], "a", encoding="utf-8") as out:
    out.write(json.dumps(record) + "\n")


def of_jaxlib_alone(case, fault):
  """True if XLA refuses the program with shard_map's check off, too."""
  if not fault.text.startswith(("XlaRuntimeError", "JaxRuntimeError")):
    return False
  with mock.patch.dict(fuzz_running.OPTIONS, fuzz_running.UNCHECKED):
    again = fuzz_running.fault_of(case)
  return again is not None and again.text[:60] == fault.text[:60]


def run(seed):
  write(begins=seed)
  began = time.monotonic()
  case, fault = fuzz_running.drawn(seed, CONTROL_FLOW)
  if fault and of_jaxlib_alone(case, fault):
    fault.kind = "jaxlib"
  write(seed=seed, kind=fault.kind if fault else "",
        text=fault.text[:1000] if fault else "", features=case.features(),
        took=round(time.monotonic() - began, 2))
  if task["shrink"] and fault and fault.kind not in ("oracle", "jaxlib"):
    write(seed=seed, program=fuzz_shrinking.report(case, fault))
    write(seed=seed, program=fuzz_shrinking.report(
        *fuzz_shrinking.shrunk(case, fault, task["shrink"])))


# Looking for cycles at every few objects takes a tenth of the time.
gc.freeze()
gc.set_threshold(200_000, 20, 100)
for seed in task["seeds"]:
  # A quarter with upstream's own checks of each intermediate program.
  with jax.enable_checks(seed % 4 == 0 and not OLD):
    run(seed)
