# SPDX-License-Identifier: Apache-2.0
"""Refuses a backward rule's cotangent that may be the whole already.

In ``shard_map`` with the check on, the cotangent of an input that doesn't vary
along an axis is the same on all of its devices. A rule of ``custom_vjp`` that
returns one that varies has computed each device's part, and the parts are
summed, as JAX does for a plain function (`custom_rules`). But a rule may also
have put the parts together itself: by a gather, a reduce-scatter and a gather,
a ring of permutes. What it returns then is the whole, though its type can't say
so, and a sum multiplies it by the number of devices. Upstream refuses both.

A part is made without communication, but for sums. So the rule is traced once
more (`ways`), and each value is marked that comes of what the rule was given
by way of a collective over the axis that isn't a sum over devices. A value
whose type says that it doesn't vary loses the mark. With a residual that the
forward rule computed the way begins there, with the function's inputs: that
rule is traced, too. A result that is marked is refused.

What was communicated before the function was called doesn't count. The rule of
a function of each device's own values is one of a part, whatever these are.

Limits: communication that no parameter of an operation names, as in a kernel
or a foreign call, isn't seen, nor that of a forward rule under
``jax_custom_vjp3``. A residual of a forward rule that can't be traced again
counts as communicated. Cost: a tracing of each rule whose result varies over
more axes than its input, and one of its forward rule if that computes what the
result depends on; none of others.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import enum
from typing import Any, NamedTuple

from jax._src import core
from jax._src import source_info_util
from jax._src import tree_util
from jax._src.ad_util import SymbolicZero
from jax._src.mend import pages
from jax._src.mend import release_types
from jax._src.mend import releases
from jax._src.varying import backward
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.autodiff import ways
from jax._src.varying.contents import named_axes

# A sum of which each device gets its share.
_SUMS = frozenset([
    'reduce_scatter', 'unreduced_reduce_scatter', 'reduce_scatter_start'])


class Way(enum.IntEnum):
  """The way of a value; the worst of its operands' is its."""
  NONE = 0
  OWN = 1
  COMMUNICATED = 2


class Forward(NamedTuple):
  """The forward rule beside a backward rule.

  Attributes:
    rule: of the function's arguments.
    tree: their structure.
    symbolic_zeros: whether it is told which of them are differentiated by.
  """
  rule: Callable[..., Any]
  tree: Any
  symbolic_zeros: bool

  def residuals(self, *args: Any) -> list[Any]:
    """Residuals of the function's arguments, both flat."""
    return tree_util.tree_leaves(self._pair(*args)[1])

  def results(self, *args: Any) -> list[Any]:
    """All that it returns, flat."""
    return tree_util.tree_leaves(self._pair(*args))

  def _pair(self, *args: Any) -> tuple[Any, Any]:
    from jax._src import custom_derivatives  # imports this module
    if self.symbolic_zeros:
      args = tuple(custom_derivatives.CustomVJPPrimal(x, True) for x in args)
    return self.rule(*tree_util.tree_unflatten(self.tree, args))


def refuse(
    avals: Sequence[Any], cts: Sequence[Any],
    traced: Callable[[], ways.Traced | None], forward: Forward | None,
    attached_to: str = '') -> None:
  """Refuses results of a backward rule that may be complete already.

  Args:
    avals: the types of the function's inputs, flat.
    cts: what the rule returned for them, flat. What is not an array, such as
      the stand-in for None, is not looked at.
    traced: traces the rule again.
    forward: its forward rule, if that is known.
    attached_to: the function and where it is, for the message.

  Raises:
    ValueError: a cotangent that varies along an axis along which its input
      doesn't was communicated over it.
  """
  flags = backward.rule.wanted
  if flags is None or len(flags) != len(cts):
    flags = [True] * len(cts)
  for aval, ct, wanted in zip(avals, cts, flags):
    got = None if type(ct) is SymbolicZero else smc.array_type(ct)
    if not wanted or not smc.comparable(got, smc.cotangent_type(aval)):
      continue
    for axis in vt.ordered(vt.nontrivial(vt.varying(got) - vt.varying(aval))):
      found = traced()
      if found is None:
        raise ValueError(_message(aval, got, axis, attached_to, (
            "the rule can't be traced to see whether it communicates")))
      _refuse_along(axis, aval, ct, cts, avals, found, forward, attached_to)


def _refuse_along(axis, aval, ct, cts, avals, traced: ways.Traced,
                  forward: Forward | None, attached_to: str) -> None:
  def judge(step) -> tuple[int, str]:
    """The way of the result, and the rule that it is of."""
    def way(of_input):
      return ways.of_result(traced.results(of_input, step, Way.OWN), cts, ct)

    def kept(n, v):
      # What is the same on all devices by its type is known to be complete.
      return n < traced.residuals and axis in vt.varying(v.aval)

    worst = way(lambda n, v: Way.OWN)
    if worst != Way.OWN or forward is None or Way.OWN == way(
        lambda n, v: Way.COMMUNICATED if kept(n, v) else Way.OWN):
      return worst, 'the rule'
    residuals = _of_residuals(forward, avals, traced.residuals, step)
    if residuals is None:
      return Way.COMMUNICATED, ''
    return way(lambda n, v: residuals[n] if kept(n, v) else Way.OWN), (
        'its forward rule')

  met: list[core.JaxprEqn] = []
  worst, where = judge(_step(axis, met))
  if worst != Way.COMMUNICATED:
    return
  if not where:
    why = ("its forward rule can't be traced to see whether it communicates"
           f' over {axis!r}')
  else:
    eqn = next((e for e in met if judge(
        _step(axis, [], e))[0] == Way.COMMUNICATED), met[0])
    why = (f'{vt.name_of(eqn.primitive)} communicated it, or what it is made'
           f' of, over {axis!r} in {where} (of the call at'
           f' {source_info_util.summarize(eqn.source_info)})')
  raise ValueError(_message(aval, vt.typeof(ct), axis, attached_to, why))


def _step(axis: Any, met: list[core.JaxprEqn], only: Any = None) -> ways.Step:
  def step(eqn, ins, out):
    if axis not in vt.varying(out.aval):
      return min(max(ins), Way.OWN)
    if (any(ins) and axis in named_axes(eqn)
        and vt.name_of(eqn.primitive) not in _SUMS
        and (only is None or _place(eqn) == _place(only))):
      met.append(eqn)
      return Way.COMMUNICATED
    return max(ins)
  return step


def _place(eqn: core.JaxprEqn) -> tuple:
  return eqn.primitive, source_info_util.summarize(eqn.source_info)


def _of_residuals(forward: Forward, avals: Sequence[Any], count: int,
                  step: ways.Step) -> Sequence[int] | None:
  """The ways of residuals; None if the rule can't be traced again."""
  arrays: list[int] = []
  number = 0

  def flat(*args):
    nonlocal number
    leaves = forward.residuals(*args)
    arrays[:] = [n for n, x in enumerate(leaves)
                 if smc.array_type(x) is not None]
    number = len(leaves)
    return [leaves[n] for n in arrays]

  try:
    jaxpr = ways.trace(flat, avals, 'custom_vjp fwd')
  except Exception:  # of a program that isn't the user's
    return None
  if number != count:
    return None
  first = len(jaxpr.invars) - len(avals)
  found = ways.outs(jaxpr, [Way.NONE] * first + [Way.OWN] * len(avals), step,
                    Way.OWN)
  return [dict(zip(arrays, found)).get(n, Way.OWN) for n in range(count)]


def _message(aval, got, axis, attached_to: str, why: str) -> str:
  attached = f' attached to {attached_to}' if attached_to else ''
  gather = ("jax.lax.all_gather(..., to='invarying')"
            if release_types.types_can_be_reduced() else
            'jax.lax.all_gather_invariant'
            if releases.find('jax.lax', 'all_gather_invariant') else '')
  gather = f', or gather it by `{gather}`' if gather else ''
  return (
      f'Custom VJP bwd rule{attached} must produce an output with the same type'
      f' as the input, but the bwd rule{attached} produced an output of type'
      f" {got.str_short()}, which doesn't match expected type"
      f' {smc.cotangent_type(aval).str_short()}: it varies over'
      f' {smc.axes_text(frozenset([axis]))}, and the input does not. What'
      f" varies is taken for each device's part, and summed. This may be the"
      f' whole already: {why}. A sum would multiply it by the number of'
      ' devices. If each device has the'
      f' whole, return `jax.lax.pmean(ct, {axis!r})`{gather}. If each has a'
      f' part, return the sum: `jax.lax.psum(ct, {axis!r})`.' +
      pages.see('varying.md#gradients'))
