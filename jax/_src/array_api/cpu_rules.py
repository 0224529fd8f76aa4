# SPDX-License-Identifier: Apache-2.0
"""Lowering rules that are corrected for CPUs, and for no other platform.

A rule stands in a table of JAX's, of the CPU's own rules or of those for all
platforms; the corrected one takes its place in the same table. In a module that
is lowered for several platforms, its platform index tells which one it runs on.

Cost: nothing at run time; a module for one other platform is lowered as before.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax._src.interpreters import mlir
from jax._src.lib.mlir.dialects import hlo

import numpy as np

Rule = Callable[..., Any]


def correct(primitive: Any, corrected: Callable[[Rule], Rule]) -> None:
  """Puts another rule in the place of a primitive's own for CPUs.

  Args:
    primitive: whose rule it is.
    corrected: makes the new rule, from the old one.
  """
  platform, rule = own_rule(primitive)
  mlir.register_lowering(primitive, corrected(rule), platform)


def own_rule(primitive: Any) -> tuple[str | None, Rule]:
  """A primitive's rule on CPUs, and the platform whose table has it.

  Args:
    primitive: whose rule it is.

  Returns:
    'cpu' or, of a rule for all platforms, None; and the rule.
  """
  # A rule of the CPU's own comes before the one for all platforms.
  platform: str | None = 'cpu'
  rules: Any = mlir._platform_specific_lowerings['cpu']
  if primitive not in rules:
    platform, rules = None, mlir._lowerings
  # Newer releases keep more than the rule.
  return platform, getattr(rules[primitive], 'rule', rules[primitive])


def platforms(ctx: mlir.LoweringRuleContext) -> Sequence[str]:
  """The platforms that an operation is lowered for."""
  return ctx.platforms or ctx.module_context.platforms


def is_on_cpu(ctx: mlir.LoweringRuleContext) -> Any:
  """True if a module for several platforms runs on a CPU, a scalar."""
  # It is the first of the dimension variables, of the width of the others.
  index = ctx.dim_var_values[0]
  cpu = ctx.module_context.platforms.index('cpu')
  wanted = mlir.ir_constant(np.int32(cpu))
  if wanted.type != index.type:
    wanted = hlo.convert(index.type, wanted)
  return mlir.compare_hlo(index, wanted, 'EQ', 'SIGNED')


def on_cpu(ctx: mlir.LoweringRuleContext, corrected: Any, plain: Any) -> Any:
  """A corrected result on CPUs, and the plain one elsewhere.

  Args:
    ctx: of an operation that is lowered for CPUs, perhaps for others too.
    corrected: the result on CPUs.
    plain: the result of the rule's own operations; unused where all are CPUs.
  """
  if len(platforms(ctx)) > 1:
    corrected = hlo.select(is_on_cpu(ctx), corrected, plain)
  return mlir.lower_with_sharding_in_types(ctx, corrected, *ctx.avals_out)
