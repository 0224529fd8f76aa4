# SPDX-License-Identifier: Apache-2.0
"""Results of a backward rule of ``custom_vjp``, before types are checked.

What is refused is refused here, or warned of: what was summed once too often
(`repeated_sums`), and what varies and may not be summed (`wholes`). All else is
cast or summed next (`custom_rules`). The rule is traced again once for both,
and once more where predicates vary (`traced_rules`).

Cost: a type look-up for each result that is as it should be.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
import weakref

from jax._src import core
from jax._src import linear_util as lu
from jax._src.mend import traces
from jax._src.varying import backward
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.autodiff import repeated_sums
from jax._src.varying.autodiff import traced_rules
from jax._src.varying.autodiff import wholes

# In which a rule returned what upstream refuses.
_refused_upstream: weakref.WeakSet[Any] = weakref.WeakSet()


def beside(bwd: lu.WrappedFun, fwd: lu.WrappedFun, tree: Any,
           symbolic_zeros: bool) -> lu.WrappedFun:
  """A backward rule that can be asked for its forward rule.

  Args:
    bwd: the backward rule.
    fwd: the forward rule, of the function's arguments.
    tree: their structure.
    symbolic_zeros: whether it is told which of them are differentiated by.

  Returns:
    The backward rule; outside of shard_map, ``bwd`` itself.
  """
  if not vt.checking():
    return bwd
  return _telling(bwd, traced_rules.Forward(
      fwd.call_wrapped, tree, symbolic_zeros))


@lu.transformation2
def _telling(f: Callable, forward: traced_rules.Forward, *args):
  rule = backward.rule
  before = rule.sums, rule.forward
  rule.sums, rule.forward = [], forward
  try:
    out = f(*args)
    rule.ended = forward, rule.sums
    return out
  finally:
    rule.sums, rule.forward = before


def check(avals: Sequence[Any], cts: Sequence[Any], rule: Callable, res: Any,
          out_cts: Any, attached_to: str = '') -> Sequence[Any]:
  """Refuses or warns of what a backward rule returned.

  Args:
    avals: the types of the function's inputs, flat.
    cts: what the rule returned for them, flat. What is not an array, such as
      the stand-in for None, is not looked at.
    rule: the backward rule, that has just been called.
    res: the residuals that it was called with.
    out_cts: likewise, the cotangents.
    attached_to: the function and where it is, for the messages.

  Returns:
    The results, complete where they vary by a predicate alone.

  Raises:
    ValueError: a result is of no use, or would be wrong.
  """
  if not vt.checking():
    return cts
  (forward, sums), backward.rule.ended = backward.rule.ended, (None, ())
  if not sums and smc.vary_alike(avals, cts):
    return cts
  rules = traced_rules.Rules(
      rule, forward, avals, cts, res, out_cts, attached_to)
  repeated_sums.refuse(rules)
  settled = wholes.settle(rules)
  if any(map(repeated_sums.is_refused_upstream, avals, cts)):
    _refused_upstream.add(core.trace_ctx.trace)
  if sums:
    repeated_sums.look(rules, sums, any(
        t in _refused_upstream for t in traces.enclosing(
            core.trace_ctx.trace)))
  return settled
