# SPDX-License-Identifier: Apache-2.0
"""The function that ``jax.vjp`` returns, at types of which it wasn't made.

A ``custom_vjp`` often keeps it for its backward rule: ``fwd`` is ``jax.vjp(f,
...)`` and ``bwd`` calls it. It holds a linear program, at the types that
``fwd`` was traced with. In a loop whose carry varies in the end, or a branch
whose index does, the function's inputs and results vary over more axes than
those. While such a rule runs, the program is re-typed: it is linear, and so
right for a direction of each device as well as for one that all share. An
input that is one of the function's gets the axes that this has now, and one
that ``fwd`` computed from some of these all that they have, but for those over
which it reduced them: these have made it the same again. Where that can't be
seen, since ``fwd`` jits what calls ``jax.vjp`` say, and the function's inputs
have not all got the same new axes, or ``fwd`` communicates over some of them,
the call is refused: a wrong guess would be a sum too many or too few. If a
cotangent varies over more axes still, all inputs get all that are new; then
what comes of an input is each device's part. The sum over them is taken after
the rule, as of anything that a rule returns with more axes than its input has
(`custom_rules`).
A program that was made in the rule itself is right as it is, unless its
cotangent varies over more axes than its result.

A program whose results then still don't vary as their cotangents do, for it
sums over devices itself, is refused, and so is one that adds to a ref of the
caller's.

Limits: a rule that does something to the parts that isn't linear does it to
each of them, as it does to cotangents. Cost: that of re-typing the program.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import core
from jax._src import dtypes
from jax._src.ad_util import Zero
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import pages
from jax._src.varying import backward
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc
from jax._src.varying.types import Axes, NO_AXES


def out_types(cts: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
  """The types that the cotangents given to a ``jax.vjp`` must have.

  Args:
    cts: the cotangents, flat.
    avals: the types of the results of the differentiated function.

  Returns:
    The types; while a backward rule runs at new types, varying along the axes
    of the cotangents too. Whether they may is for `retype_program` to say.
  """
  if not backward.rule.types.retyped:
    return list(avals)
  return [vt.with_varying(a, vt.varying(a) | vt.varying(_type(ct)))
          if smc.comparable(_type(ct), smc.cotangent_type(a)) else a
          for ct, a in zip(cts, avals)]


def retype_program(
    jaxpr: core.Jaxpr, residuals: Sequence[Any], cts: Sequence[Any],
    accumulators: Sequence[Any] = ()) -> tuple[core.Jaxpr, Sequence[Any]]:
  """The linear program of a ``jax.vjp``, for the cotangents that it is given.

  Args:
    jaxpr: the program. Its constants, or if it has none its first inputs, are
      what was kept.
    residuals: these values.
    cts: a cotangent of each of its results.
    accumulators: what adds up the cotangents of its other inputs, on releases
      that have such; they are given the inputs' new types.

  Returns:
    The program and the values, re-typed while a backward rule runs at new
    types, if they must be.

  Raises:
    ValueError: a cotangent varies where its result can't.
  """
  if not backward.rule.types.retyped:
    return jaxpr, residuals
  constants, count = bool(jaxpr.constvars), len(residuals)
  opened = pe.convert_constvars_jaxpr(jaxpr) if constants else jaxpr
  kept, inputs = opened.invars[:count], opened.invars[count:]
  new = _new_axes(jaxpr, inputs[:len(accumulators) or None])
  beyond = _beyond(residuals, kept)
  if not beyond and not any(new) and not _beyond(cts, jaxpr.outvars):
    return jaxpr, residuals
  ins = [vt.varying(v.aval) | vt.varying(_type(x))
         for v, x in zip(kept, residuals)]
  region = _solve(opened, ins, new, beyond, cts)
  retyped = retype.rebuild(region)
  _retype(accumulators, [v.aval for v in retyped.invars[count:]])
  residuals = list(map(vt.cast, residuals, ins))
  if constants:
    module: Any = pe  # it has this where programs have constants: to 0.9
    retyped = module.convert_invars_to_constvars(retyped, count)
    return _with_casts_made(retyped, residuals)
  return retyped, residuals


def _solve(jaxpr: core.Jaxpr, ins: Sequence[Axes], new: Sequence[Axes],
           beyond: Axes, cts: Sequence[Any]) -> flow.Region:
  """The program, solved so that its results vary as their cotangents do.

  Args:
    jaxpr: the program; what was kept is its first inputs.
    ins: what these vary over.
    new: what the other inputs, or the first of them, vary over besides.
    beyond: what was kept varies over besides.
    cts: a cotangent of each result.

  Raises:
    ValueError: a cotangent varies where its result can't.
  """
  region, inputs = flow.Region(jaxpr), jaxpr.invars[len(ins):]

  def run(new):
    # On later releases values follow what is a direction.
    new = [*new, *[NO_AXES] * (len(inputs) - len(new))]
    return region.run([*ins, *(
        vt.varying(v.aval) | a if _is_direction(v.aval) else vt.varying(v.aval)
        for v, a in zip(inputs, new))])

  lacking = _lacking(cts, run(new))
  if lacking:
    every = lacking | beyond | flow.union(new)
    lacking = _lacking(cts, run([every] * len(new)))
  if lacking:
    ct, v = next((ct, v) for ct, v in zip(cts, region.outvars)
                 if vt.varying(_type(ct)) - region.read(v))
    raise ValueError(smc.refusal(
        'jax.vjp', _type(ct), vt.with_varying(v.aval, region.read(v))))
  return region


def _with_casts_made(jaxpr: core.Jaxpr, residuals: Sequence[Any]):
  """The program and what was kept, with the casts of it made.

  Since 0.7 what is transposed may hold equations of directions only.
  """
  known: dict[core.Var, Any] = dict(zip(jaxpr.constvars, residuals))
  eqns = []
  for eqn in jaxpr.eqns:
    if eqn.primitive is core.pvary_p and all(
        isinstance(v, core.Literal) or v in known for v in eqn.invars):
      outs = core.pvary_p.bind(
          *(v.val if isinstance(v, core.Literal) else known[v]
            for v in eqn.invars), **eqn.params)
      known.update(zip(
          eqn.outvars, outs if core.pvary_p.multiple_results else [outs]))
    else:
      eqns.append(eqn)
  return (jaxpr.replace(constvars=list(known), eqns=eqns),
          list(known.values()))


def _new_axes(jaxpr: core.Jaxpr, inputs: Sequence[core.Var]) -> list[Axes]:
  """The axes of each input that it lacked when ``fwd`` was traced."""
  none = [NO_AXES] * len(inputs)
  if (backward.rule.types.inputs is None
      or any(jaxpr is p for p in backward.rule.programs)):
    return none
  traced, told = backward.rule.types.inputs
  grown = [vt.varying(b) - vt.varying(a) for a, b in zip(traced, told)]
  if not any(grown):
    return none
  places = backward.places_of(jaxpr)
  if places is None or len(places) != len(inputs):
    places = [None] * len(inputs)
  # If all have grown alike, each is matched by any of them, unless it was
  # reduced.
  alike = {g for g, a in zip(grown, traced) if _is_direction(a)}
  forward = backward.rule.forward
  if None in places and (len(alike) > 1 or forward is not None and (
      forward.communicates(traced, flow.union(grown)))):
    raise ValueError(_unmatched(flow.union(grown)))
  return [flow.union(alike if made_of is None else [
      grown[n] - same for n, same in made_of]) for made_of in places]


def _unmatched(axes: Axes) -> str:
  cast = smc.cast_text('init', axes)
  return (
      "jax.vjp: a custom_vjp's backward rule calls the function that jax.vjp"
      ' returned to its forward rule, in a loop or branch where some of what'
      f' the rule was given varies over {smc.axes_text(axes)}, though it did'
      ' not when the rule was traced. Which inputs of jax.vjp vary with it'
      " can't be told: the forward rule calls jax.vjp in a function that is"
      ' traced on its own (jit, checkpoint), or computes its inputs in a loop'
      ' or a branch. Cast what comes to vary before the loop or branch, such as'
      f' the initial carry: {cast}. Or call jax.vjp in the forward rule itself,'
      " with the rule's own arguments." +
      pages.see('differentiation.md#what-stays-an-error'))


def _lacking(cts: Sequence[Any], outs: Sequence[Axes]) -> Axes:
  return flow.union([vt.varying(_type(ct)) - a for ct, a in zip(cts, outs)])


def _type(x: Any) -> Any:
  return x.aval if isinstance(x, Zero) else smc.array_type(x)


def _beyond(values: Sequence[Any], variables: Sequence[core.Atom]) -> Axes:
  """The axes that any of the values varies over and its variable doesn't."""
  return flow.union([vt.varying(_type(x)) - vt.varying(v.aval)
                     for x, v in zip(values, variables)])


def _is_direction(aval: Any) -> bool:
  return isinstance(aval, core.ShapedArray) and aval.dtype != dtypes.float0


def _retype(accumulators: Sequence[Any], avals: Sequence[Any]) -> None:
  for a, aval in zip(accumulators, map(smc.cotangent_type, avals)):
    if vt.varying(a.aval) == vt.varying(aval):
      continue
    if hasattr(a, 'ref'):
      raise ValueError(
          'jax.vjp: the function is called where its gradients vary over'
          f' {smc.axes_text(vt.varying(aval) - vt.varying(a.aval))} and the ref'
          ' that was given to `with_refs` does not. Call it without, and add'
          ' what it returns to the ref.' +
          pages.see('differentiation.md#what-stays-an-error'))
    a.aval = aval
    if isinstance(getattr(a, 'val', None), Zero):
      a.val = Zero(aval)
