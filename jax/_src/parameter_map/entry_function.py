# SPDX-License-Identifier: Apache-2.0
"""The entry function of a lowered module, and what it says of its results.

A runtime that executes a module itself has three questions about its ``main``,
and they are answered here by looking, never by guessing:

* which result may be written into which parameter's buffer
  (``tf.aliasing_output``, the donations that JAX has paired itself);
* which parameters are donated without a result named for them
  (``jax.buffer_donor``, the donations that the compiler is to pair): with the
  first, `donations`;
* which results are a parameter handed through untouched: `forwarded`. The
  search walks from the return through calls of private functions, since a
  nested ``jit`` is lowered to one, and stops at any other operation: a result
  that is computed and happens to equal a parameter is not reported.

`compiled_aliases` answers the first question for an executable, where XLA has
paired the donors too.

Cost: one pass over the attributes of the parameters, and one over the results
with a step for each level of nested calls. It reads, and never changes, the
module.
"""

from __future__ import annotations

from collections.abc import Sequence
import re
from typing import Any, NamedTuple

import numpy as np

from jax._src.lib.mlir import ir


class Donations(NamedTuple):
  """The donated parameters of an entry function, and what becomes of them.

  Attributes:
    aliases: result number to the number of the parameter whose buffer it may
      take over.
    donors: numbers of the donated parameters, paired or not.
  """
  aliases: dict[int, int]
  donors: frozenset[int]


def entry(module: Any) -> Any:
  """Returns the function of `module` that a runtime calls."""
  for op in module.body.operations:
    if (op.operation.name == 'func.func' and
        op.attributes['sym_name'].value == 'main'):
      return op
  raise ValueError('the lowered module has no function called main')


def integer_dtype(argument: Any) -> np.dtype:
  """Returns the dtype of a parameter that is a scalar integer."""
  return np.dtype(np.int64 if 'i64' in str(argument.type) else np.int32)


def donations(module: Any) -> Donations:
  """Reads the donated parameters off a StableHLO module.

  Args:
    module: the MLIR module, as ``Lowered.compiler_ir("stablehlo")`` returns it.

  Returns:
    The `Donations` of its entry function.
  """
  main = entry(module)
  aliases: dict[int, int] = {}
  donors = set()
  if 'arg_attrs' in main.attributes:
    for number, attrs in enumerate(main.attributes['arg_attrs']):
      if 'tf.aliasing_output' in attrs:
        aliases[attrs['tf.aliasing_output'].value] = number
        donors.add(number)
      elif 'jax.buffer_donor' in attrs:
        donors.add(number)
  return Donations(aliases, frozenset(donors))


def forwarded(module: Any) -> dict[int, int]:
  """Finds the results that are parameters handed through.

  Args:
    module: as for `donations`.

  Returns:
    Result number to parameter number.
  """
  functions = {op.attributes['sym_name'].value: op
               for op in module.body.operations
               if op.operation.name == 'func.func'}
  found = {}
  for number, value in enumerate(returned(entry(module))):
    calls: list[Any] = []  # that we went into, innermost last
    while value is not None:
      owner, position = _origin(value)
      value = None
      if owner is None and calls:
        value = calls.pop().operands[position]
      elif owner is None:
        found[number] = position
      elif owner.name == 'func.call':
        callee = functions.get(owner.attributes['callee'].value)
        if callee is not None:
          calls.append(owner)
          value = returned(callee)[position]
  return found


def returned(function: Any) -> Sequence[Any]:
  """Returns the values that `function`'s single block returns."""
  operations = function.regions[0].blocks[0].operations
  return operations[len(operations) - 1].operands


def _origin(value: Any) -> tuple[Any, int]:
  """Returns the operation that makes `value`, or None, and the result's number.

  For the argument of a block, the operation is None and the number is the
  argument's.
  """
  if not isinstance(value, (ir.BlockArgument, ir.OpResult)):
    # Before JAX 0.9.1 the bindings hand out plain values.
    value = (ir.BlockArgument if isinstance(value.owner, ir.Block)
             else ir.OpResult)(value)
  if isinstance(value, ir.BlockArgument):
    return None, value.arg_number
  return value.owner, value.result_number


# {3}: (1, {}, may-alias), or with the arguments packed in a tuple
# {3}: (0, {1}, may-alias); the only result of a function has the index {}.
_ALIAS = re.compile(r'\{(\d*)\}: \((\d+), \{(\d*)\}, \w+-alias\)')


def compiled_aliases(hlo_text: str) -> dict[int, int]:
  """Reads the aliasing that XLA settled on off a compiled module's text.

  Args:
    hlo_text: the text of the module, of which only the first line is read.

  Returns:
    Result number to parameter number.
  """
  header = hlo_text.split('\n', 1)[0]
  aliases = {}
  for result, parameter, inside in _ALIAS.findall(header):
    aliases[int(result or 0)] = int(inside or parameter)
  return aliases
