# SPDX-License-Identifier: Apache-2.0
"""A pytest plugin with which jax lowers a process's modules in one context.

To make a context of MLIR, with every dialect that jax knows, takes 3 ms, and a
test file lowers hundreds of modules: an eighth of its time. What is lowered
while something else is has a context of its own, else it would become part of
the other's module. The price: a value that is kept from one lowering to the
next, which in a context of its own would belong to another, is not found out.
So only what runs one case of each test has this; where a release runs all of
them, each lowering has a context of its own.
"""

import sys


def _is_lowering(ir):
  try:
    return ir.Context.current is not None
  except ValueError:  # there is none
    return False


def pytest_collection_finish():
  mlir = sys.modules.get("jax._src.interpreters.mlir")
  if mlir is not None:
    make = mlir.make_ir_context
    context = make()
    mlir.make_ir_context = lambda: make() if _is_lowering(mlir.ir) else context
