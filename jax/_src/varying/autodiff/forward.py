# SPDX-License-Identifier: Apache-2.0
"""Forward-mode rules for tangents that don't vary as their primals do.

``jax.jvp`` inside ``shard_map`` can be given a tangent that varies along fewer
mesh axes than its primal (``jnp.ones``), or along more (a direction for each
device, at a point that all share). Primal outputs then have the types that the
function gives them, whatever the tangents are, and tangent outputs vary along
what they are computed from. So nothing is cast where ``jvp`` is called; each
operation's rule is fitted where it is applied (jax#28193):

* A rule made of ordinary operations is applied as it is: its operations join
  the axes of their operands. Where one refuses to, as below.
* A collective's tangent varies along the axes that the collective is over, if
  its primal does: a sum takes what varies along one of them, and its transpose
  is of what varies along all.
* What calls a jaxpr (``jit``, loops, branches, ``remat``, linear solves) has a
  rule that types its tangents by its primals: upstream refuses others, or takes
  them and calls a tangent replicated that is not. Tangents that vary along
  fewer axes are cast. If one varies along more, the rule is staged out on
  tangents of its primals' types, and the staged jaxpr is given the actual types
  by ``retype``, which raises those values alone that depend on it.
* The rule of a ``custom_jvp`` function is the user's; it is treated in the
  same way, so that it needs to know nothing about types.

Limits: rules that work on mutable references are left alone. Cost: with the
check on, one look at the types of each pair; staging only for a tangent that
varies along more axes than its primal.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import operator
from typing import Any

from jax._src import ad_util
from jax._src import api_util
from jax._src import core
from jax._src import dtypes
from jax._src import linear_util as lu
from jax._src.interpreters import partial_eval as pe
from jax._src.mend.manual_axes import AXES_OF_ARRAY
from jax._src.varying import flow
from jax._src.varying import retype_values
from jax._src.varying import types as vt
from jax._src.varying.contents import axes_of_collective

_ZEROS = (ad_util.Zero, ad_util.SymbolicZero)
_tracer_axes = operator.attrgetter(f'aval.{AXES_OF_ARRAY}')


def _axes(x: Any) -> vt.Axes:
  return vt.varying(vt.typeof(x))


def _differ(primals: Sequence[Any], tangents: Sequence[Any]) -> bool:
  """True if a tangent varies along other axes than its primal.

  Of each operation that is differentiated, so it takes the shortest way to the
  usual answer.
  """
  try:
    for p, t in zip(primals, tangents):
      if type(t) not in _ZEROS and _tracer_axes(p) != _tracer_axes(t):
        break
    else:
      return False
  except AttributeError:  # a constant, or something else than an array
    pass
  for p, t in zip(primals, tangents):
    if type(t) not in _ZEROS:
      p, t = vt.typeof(p), vt.typeof(t)
      if (isinstance(p, core.ShapedArray)
          and vt.axes_of_array(p) != vt.axes_of_array(t)):
        return True
  return False


def _fitted(apply: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]],
            primals: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
  """Applies a rule that wants tangents of its primals' types.

  Args:
    apply: of primals and tangents; returns a flat sequence of arrays and
      symbolic zeros.
    primals: the primal inputs.
    tangents: the tangent inputs, some of them symbolic zeros.

  Returns:
    What ``apply`` returns, at the types of the actual tangents.
  """
  primals = list(primals)
  tangents = [
      t if isinstance(t, _ZEROS) or vt.typeof(t).dtype == dtypes.float0
      else vt.cast(t, _axes(p)) for p, t in zip(primals, tangents)]
  arrays = [i for i, t in enumerate(tangents) if not isinstance(t, _ZEROS)]
  args = primals + [tangents[i] for i in arrays]
  avals = [vt.typeof(x) for x in args]
  if (not _differ(primals, tangents)
      or not all(isinstance(a, core.ShapedArray) for a in avals)):
    return list(apply(primals, tangents))
  for n, i in enumerate(arrays, len(primals)):
    avals[n] = vt.with_varying(avals[n], _axes(primals[i]))
  zeros: dict[int, Any] = {}

  def staged(*args):
    new = list(tangents)
    for i, t in zip(arrays, args[len(primals):]):
      new[i] = t
    outs = list(apply(args[:len(primals)], new))
    zeros.update((i, t) for i, t in enumerate(outs) if isinstance(t, _ZEROS))
    return [t for t in outs if not isinstance(t, _ZEROS)]

  debug_info = api_util.debug_info('jvp', staged, tuple(args), {})
  jaxpr, _, consts, *_ = pe.trace_to_jaxpr_dynamic(
      lu.wrap_init(staged, debug_info=debug_info), avals)
  evaluate = retype_values.for_directions(core.eval_jaxpr)
  outs = iter(evaluate(jaxpr, consts, *args))
  n = len(jaxpr.outvars) + len(zeros)
  return [zeros[i] if i in zeros else next(outs) for i in range(n)]


def _varying_over(axes: vt.Axes, primals: Sequence[Any],
                  tangents: Sequence[Any]) -> list[Any]:
  """The tangents, varying along those of the axes that their primals do."""
  def raised(p, t):
    if isinstance(t, _ZEROS):
      return t
    missing = axes & _axes(p) - _axes(t)
    return vt.cast(t, missing) if missing and vt.promotable(
        vt.typeof(t), _axes(t) | missing) else t
  return [*map(raised, primals, tangents)]


def fit_rule(primitive: core.Primitive, rule: Callable,
             primals: Sequence[Any], tangents: Sequence[Any]) -> Callable:
  """The forward-mode rule of a primitive, for tangents of any varying axes.

  Args:
    primitive: what is differentiated.
    rule: its rule, of primals, tangents and parameters.
    primals: what the rule will be applied to.
    tangents: likewise, some of them symbolic zeros.

  Returns:
    The rule itself if each tangent varies as its primal does, else one of the
    same arguments and results.
  """
  if not vt.checking() or not _differ(primals, tangents):
    return rule

  def fitted(primals, tangents, /, **params):
    if over := axes_of_collective(primitive, params):
      tangents = _varying_over(over, primals, tangents)
    # Sums of cotangents only assert that their operands vary alike.
    if not (flow.applies_jaxpr(primitive, params)
            or primitive is ad_util.add_jaxvals_p):
      try:
        return rule(primals, tangents, **params)
      except (TypeError, ValueError):
        pass  # operands that vary differently; any other error comes again

    def apply(primals, tangents):
      ps, ts = rule(primals, tangents, **params)
      return [*ps, *ts] if primitive.multiple_results else [ps, ts]

    outs = _fitted(apply, primals, tangents)
    half = len(outs) // 2
    if primitive.multiple_results:
      return outs[:half], outs[half:]
    return outs

  return fitted


def fit_custom_rule(call: Callable) -> Callable:
  """The rule of a ``custom_jvp`` function, for tangents of any varying axes.

  Args:
    call: of the primals and then the tangents, flat; returns the primal
      outputs and then the tangent outputs, flat.

  Returns:
    A function of the same arguments and results.
  """
  if not vt.checking():
    return call

  def fitted(*args):
    half = len(args) // 2
    primals, tangents = args[:half], args[half:]
    if not _differ(primals, tangents):
      return call(*args)
    return _fitted(lambda ps, ts: call(*ps, *ts), primals, tangents)

  return fitted
