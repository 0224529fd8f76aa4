# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Refuses backward rules that sum what JAX sums as well.

In the days of ``pmap`` the gradient of a sum over devices was a sum over
devices, and rules of ``custom_vjp`` for such functions say ``lax.psum(ct,
'x')`` to this day. In ``shard_map`` with the check on, the cotangent of what
does not vary is the same on every device and complete; to sum it multiplies it
by the number of devices. The result does not vary where the input does, and so
such a rule looks like one that returns a constant, which is cast. What tells
the two apart is the way that the cotangent took to the result. (One that varies
over these axes is each device's own part: a rule may well sum it.)

* The rule is traced once more, as a function of its cotangents.
* From the cotangents on, each value is marked that is computed from one, and
  those of which a part went through a reduction over the axes that the result
  lacks: through an operation whose operand varies along them, and whose result
  does not. Calls and branches are followed, loops to a fixed point.
* A result so reached is refused. What depends on residuals alone, or on a
  cotangent that met no reduction, is cast by the caller.

A rule that can't be traced again, as it wants to know values, is refused too:
upstream refuses all that lack axes.

Limits: a primitive that is opaque, such as a kernel, counts as a reduction if
its operands vary and its results do not. Cost: one more tracing of a rule whose
result lacks axes, and none of others.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import enum
from typing import Any

from jax._src import api_util
from jax._src import core
from jax._src import linear_util as lu
from jax._src.mend import releases
from jax._src import tree_util
from jax._src.ad_util import SymbolicZero
from jax._src.interpreters import partial_eval as pe
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.contents import from_derivative, jaxprs_in


class Way(enum.IntEnum):
  """The way of a value from a cotangent; the worst of its operands' is its."""
  NONE = 0
  PART = 1  # each device has its own, of a cotangent that varies
  PLAIN = 2
  SUMMED = 3


def refuse_reduced_results(
    avals: Sequence[Any], cts: Sequence[Any], rule: Callable, res: Any,
    out_cts: Any, attached_to: str = '') -> None:
  """Refuses results of a backward rule that were reduced over missing axes.

  Args:
    avals: the types of the function's inputs, flat.
    cts: what the rule returned for them, flat. What is not an array, such as
      the stand-in for None, is not looked at.
    rule: the backward rule.
    res: the residuals that it was called with.
    out_cts: likewise, the cotangents.
    attached_to: the function and where it is, for the message.

  Raises:
    ValueError: a cotangent was reduced over axes that it lacks.
  """
  lacking = {}
  for i, (aval, ct) in enumerate(zip(avals, cts)):
    got = None if type(ct) is SymbolicZero else smc.array_type(ct)
    if (smc.comparable(got, smc.cotangent_type(aval))
        and not vt.varying(aval) <= vt.varying(got)):
      lacking[i] = vt.varying(aval) - vt.varying(got)
  if not lacking or _checks_are_off():
    return
  found = _traced(rule, res, out_cts)
  first = _distinct(ct for ct in cts if smc.array_type(ct) is not None)
  for i, axes in lacking.items():
    # One by one: a cotangent can vary along some of them. A sum over one device
    # is none.
    ways = [Way.SUMMED] if found is None else list(map(max, zip(*(
        _ways(*found, frozenset([axis])) for axis in vt.parting(axes)))))
    if len(ways) == len(first):
      at = next(n for n, ct in enumerate(first) if ct is cts[i])
      ways = [ways[at]]
    if Way.SUMMED in ways:
      raise ValueError(_message(avals[i], cts[i], axes, attached_to,
                                found is None))


def _checks_are_off() -> bool:
  option = releases.unchecked_backward_rules()
  return option is not None and option.value


def _distinct(xs) -> list[Any]:
  """The values; one that follows itself (a prefix of a tree) counts once."""
  out: list[Any] = []
  for x in xs:
    if not out or out[-1] is not x:
      out.append(x)
  return out


def _message(aval, ct, axes, attached_to: str, opaque: bool) -> str:
  attached = f' attached to {attached_to}' if attached_to else ''
  over, names = smc.axes_text(axes), vt.ordered(axes)
  text = (
      f'Custom VJP bwd rule{attached} must produce an output with the same type'
      f' as the input, but the bwd rule{attached} produced an output of type'
      f" {vt.typeof(ct).str_short()}, which doesn't match expected type"
      f' {smc.cotangent_type(aval).str_short()}: the input varies over {over},'
      ' and the cotangent does not')
  if opaque:
    return (f'{text}. If it is the same on every device, return'
            f" {smc.cast_text('ct', axes)}.")
  return (
      f'{text}, because the rule reduces it over {over} (psum, pmean, ...).'
      ' Inside of shard_map the cotangent of an output that does not vary is'
      ' complete on every device, and a sum over devices multiplies it by their'
      f' number. To get the gradient of `jax.lax.psum(x, {names})`, return the'
      ' cotangent as the rule gets it, without the reduction. If the reduced'
      ' value is what each device is to have, write'
      f" {smc.cast_text('ct', axes)} around it.")


Traced = tuple[core.Jaxpr, int]


def _traced(rule: Callable, res: Any, out_cts: Any) -> Traced | None:
  """The rule's jaxpr, and how many of its inputs, the last, are cotangents."""
  # Residuals stay what they are: a rule may need a shape among them.
  leaves, tree = tree_util.tree_flatten(out_cts)
  avals = [smc.array_type(x) for x in leaves]
  arrays = [i for i, aval in enumerate(avals) if aval is not None]

  def flat(*args):
    new = list(leaves)
    for i, x in zip(arrays, args):
      new[i] = x
    cts = tree_util.tree_leaves(rule(res, tree_util.tree_unflatten(tree, new)))
    return _distinct(ct for ct in cts if smc.array_type(ct) is not None)

  args = [leaves[i] for i in arrays]
  debug_info = api_util.debug_info('custom_vjp bwd', flat, tuple(args), {})
  try:
    jaxpr, *_ = pe.trace_to_jaxpr_dynamic(
        lu.wrap_init(flat, debug_info=debug_info), [avals[i] for i in arrays])
  except core.ConcretizationTypeError:
    return None
  return jaxpr, len(arrays)


def _ways(jaxpr: core.Jaxpr, n_cts: int, axes) -> list[Way]:
  first = len(jaxpr.invars) - n_cts  # after what it captures, on some releases
  return _outs(jaxpr, [
      Way.NONE if n < first else
      Way.PART if axes <= vt.varying(v.aval) else Way.PLAIN
      for n, v in enumerate(jaxpr.invars)], axes)


def _outs(jaxpr, ins: Sequence[Way], axes) -> list[Way]:
  """The ways of a jaxpr's results, of those of its inputs."""
  jaxpr = vt.open_jaxpr(jaxpr)
  known: dict[Any, Way] = dict(zip(jaxpr.invars, ins))

  def read(v) -> Way:
    return Way.NONE if type(v) is core.Literal else known.get(v, Way.NONE)

  for eqn in jaxpr.eqns:
    before = [read(v) for v in eqn.invars]
    known.update(zip(eqn.outvars, _of_equation(eqn, before, axes)))
    if any(before):
      known.update((v, max(before)) for v in eqn.invars if vt.is_ref(v.aval))
  return [read(v) for v in jaxpr.outvars]


def _of_equation(eqn, ins: Sequence[Way], axes) -> list[Way]:
  worst, count = max(ins, default=Way.NONE), len(eqn.outvars)
  inner = list(jaxprs_in(eqn.params))
  if worst in (Way.NONE, Way.SUMMED) and not inner:
    return [worst] * count
  if not any(ins):
    return [Way.NONE] * count
  name = vt.name_of(eqn.primitive)
  if name == 'cond':
    each = [_outs(b, ins[1:], axes) for b in eqn.params['branches']]
    return [max(ins[0], *ways) for ways in zip(*each)]
  if name == 'scan':
    return _of_scan(eqn, ins, axes)
  if len(inner) == 1 and len(inner[0].invars) == len(ins) and (
      len(inner[0].outvars) == count):
    return _outs(inner[0], ins, axes)
  if inner:
    return [Way.SUMMED if any(_reduces(j, axes) for j in inner)
            else worst] * count
  return [max(worst, _removed(eqn, ins, v, axes)) for v in eqn.outvars]


def _of_scan(eqn, ins: Sequence[Way], axes) -> list[Way]:
  consts, carries = vt.scan_counts(eqn.params)
  ins = list(ins)
  while True:
    outs = _outs(eqn.params['jaxpr'], ins, axes)
    after = [max(a, b) for a, b in zip(ins[consts:consts + carries], outs)]
    if after == ins[consts:consts + carries]:
      return outs
    ins[consts:consts + carries] = after


def _removed(eqn, ins: Sequence[Way], out, axes) -> Way:
  """The way of a result that lacks axes which a reached operand varies along.

  A rule may sum the parts of a cotangent once. A derivative that it takes sums
  for another reason: what it differentiates by was the same on all devices.
  """
  worst = max((way for v, way in zip(eqn.invars, ins)
               if type(v) is not core.Literal
               and axes & vt.varying(v.aval) - vt.varying(out.aval)),
              default=Way.NONE)
  if worst is Way.PART and not from_derivative(eqn):
    return Way.PLAIN
  return Way.SUMMED if worst else Way.NONE


def _reduces(jaxpr: core.Jaxpr, axes) -> bool:
  """True if anything in the jaxpr is reduced over any of the axes."""
  every = [Way.PLAIN]
  return any(
      _reduces(j, axes) for eqn in jaxpr.eqns
      for j in jaxprs_in(eqn.params)) or any(
          _removed(eqn, every * len(eqn.invars), v, axes)
          for eqn in jaxpr.eqns for v in eqn.outvars)
