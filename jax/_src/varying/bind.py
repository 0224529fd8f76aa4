# SPDX-License-Identifier: Apache-2.0
"""Binds a loop or branch at the least types that hold for it.

Whoever binds the primitive, a public function, a transformation or another
library's interpreter, its parameters hold jaxprs that were traced at some
types, and its operands have some. ``flow`` solves what it and its operands must
vary over; the operands are cast to that outside of the loop or branch,
and the jaxprs re-typed (``retype``), once. What no re-typing can mend is traced
again (``retrace``). A loop or branch that is right as it was traced costs a
comparison of its types and is bound as it is, with no frame more on the stack,
so that programs can be nested as deeply as ever.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import itertools
from typing import Any, NamedTuple

from jax._src import config
from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend import pages
from jax._src.mend import releases
from jax._src.mend import trace_key
from jax._src.mend import traces
from jax._src import source_info_util
from jax._src.varying import agreement
from jax._src.varying import context
from jax._src.varying import divergence
from jax._src.varying import flow
from jax._src.varying import outdated
from jax._src.varying import requirements
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying import verify
from jax._src.varying.contents import contents, from_derivative, jaxprs_in
from jax._src.varying.flow import Site
from jax._src.varying.types import Axes, NO_AXES


def discharged_as_traced(discharge):
  """Has refs made values without a look at predicates, before 0.9.1.

  What only some devices write to a ref is typed as the ref is there, and so is
  the value that the ref becomes.
  """
  @functools.wraps(discharge)
  def discharge_as_traced(*args, **kwargs):
    return context.run('discharging', discharge, *args, **kwargs)
  return discharge_as_traced


class Binding:
  """The binding of a primitive whose parameters hold jaxprs: a loop, a branch.

  Each primitive has a subclass. ``is_solved`` is asked at every bind. If it
  says no, ``solve`` gives what to bind instead, by ``binders`` and
  ``typed_params``.

  Attributes:
    prim: the primitive.
    carries: of a loop, which of the operands are its carry, from one position
      to another; their promotion can be refused with a TypeError where the
      configuration says so.
    is_called: of a loop, whether its caller binds it, who has its body.
  """
  carries: Callable[[dict[str, Any]], tuple[int, int]] | None = None
  is_called: Callable[[dict[str, Any]], bool] | None = None

  def __init__(self, prim: core.Primitive):
    self.prim = prim

  @staticmethod
  def is_solved(params: dict[str, Any], avals: Sequence[Any],
                refs: bool = False, trace: core.Trace | None = None
                ) -> bool | None:
    """True if the jaxprs were traced at the least types that hold for them.

    Most were, and that should cost next to nothing to see. None, where all but
    a conditional's index fits, which may agree.

    Args:
      params: the primitive's parameters.
      avals: its operands' types.
      refs: whether refs among these are as the current trace holds them. If
        not, a jaxpr that uses refs isn't known to be solved.
      trace: what binds, if that is known. What is only staged will be bound
        again, if it is differentiated.
    """
    raise NotImplementedError

  @staticmethod
  def refine_predicate(
      args: Sequence[Any], params: dict[str, Any], avals: Sequence[Any]
  ) -> tuple[Sequence[Any], dict[str, Any], Sequence[Any]]:
    """Types the predicate by where it differs, in what is bound."""
    return args, params, avals

  def in_doubt(self, site: Site, args: Sequence[Any]) -> Axes:
    """The axes along which a predicate may agree, and widens types alone.

    Args:
      site: the solved equation, with a predicate.
      args: its operands.
    """
    eqn = agreement.Bound(self.prim, site.eqn.params, site.eqn.outvars,
                          invars=args)
    on = requirements.dependence_of_predicate(eqn, len(args))
    doubt = site.predicate - on.axes(
        lambda n: agreement.surely_differs(args[n]), site.ins.__getitem__)
    if not doubt:
      return doubt
    as_jax = Site(site.eqn)
    as_jax.given, as_jax.bound = site.given, site.bound
    with vt.predicates_agreeing():
      as_jax.run(site.ins)
    return doubt if as_jax.outs != site.outs else NO_AXES

  @staticmethod
  def marked(mark: core.Primitive, mark_params: dict[str, Any],
             args: Sequence[Any], params: dict[str, Any]
             ) -> tuple[Sequence[Any], dict[str, Any]]:
    """Operands and parameters with a mark on the predicate.

    Args:
      mark: a primitive that is the identity.
      mark_params: its parameters.
      args: the operands.
      params: the primitive's parameters.
    """
    del mark, mark_params
    return args, params

  def with_marks(self, site: Site, args: Sequence[Any], given: Sequence[Any],
                 params: dict[str, Any]) -> tuple[Sequence[Any], dict]:
    """Puts marks on a predicate by which devices may diverge.

    Args:
      site: the solved equation.
      args: its operands at the solution.
      given: its operands.
      params: its parameters at the solution.
    """
    if doubt := self.in_doubt(site, given):
      requirements.note()
      args, params = self.marked(marks['doubted'], dict(along=doubt), args,
                                 params)
    if check_agreement.value:
      bound = agreement.Bound(self.prim, params, ())
      axes = flow.union(r.axes for r in requirements.of_predicate(
          bound, list(map(agreement.varying, args))))
      if comparison := comparing(axes, by_type=False):
        self.judge(core.trace_ctx.trace, args, params)  # before it is executed
        args, params = self.marked(marks['compared'], comparison, args, params)
    return args, params

  @staticmethod
  def binders(params: dict[str, Any]) -> Sequence[core.Var | None]:
    """The variable that each operand is passed to, if it is passed to one.

    What varies over fewer axes than that is cast to the type that it was traced
    with.
    """
    raise NotImplementedError

  @staticmethod
  def typed_params(site: Site) -> dict[str, Any]:
    """The parameters that hold jaxprs, at the types of the solution."""
    raise NotImplementedError

  def solve(self, args, params, avals, but_for_index: bool = False
            ) -> tuple[Sequence[Any], dict, Sequence[Any]]:
    """Operands, parameters and types to bind, in the trace that binds them.

    Args:
      args: the operands.
      params: the primitive's parameters.
      avals: the operands' types.
      but_for_index: whether all but the first operand fits.
    """
    if vt.any_ref(avals):
      given, but_for_index = args, False
      args, avals = refs_in_current_trace(args, avals)
      for jaxpr in jaxprs_in(params):
        check_refs(jaxpr, given, avals)
      if self.is_solved(params, avals, True):
        return args, params, avals
    if context.running.now.discharging and _is_as_traced(
        self.prim, params, avals):
      return args, params, avals
    given = args, params
    args, params, avals = self.refine_predicate(args, params, avals)
    if args is not given[0] or params is not given[1]:
      if (not vt.nontrivial(vt.varying(avals[0])) if but_for_index else
          self.is_solved(params, avals, True)):
        return args, params, avals
    site = solve(self.prim, params, args, avals, self.binders(params))
    if self.carries and self.is_called and site.operands != site.ins:
      _check_promotion(site, args, self.carries(params), self.is_called(params))
    if 'ref' not in operands and (axes := _outgrown(site)):
      if _is_as_traced(self.prim, params, avals):  # devices diverge
        return args, params, avals
      raise TypeError(_ref_message(self.prim, axes))
    site.selects = self.prim.name == 'cond' and vt.is_mapped(args[0])
    new: Sequence[Any] = operands_at_solution(site, args, avals)
    params = {**params, **self.typed_params(site)}
    if site.predicate and not site.selects:
      new, params = self.with_marks(site, new, args, params)
    if not requirements.noted:  # else whoever binds it does so
      self.judge(core.trace_ctx.trace, new, params)
    if config.enable_checks.value:  # a ref may have another type by now
      verify.verify_bound(self.prim, list(map(vt.typeof, new)), params)
    return new, params, types_of(new, args, avals)

  def judge(self, trace: core.Trace, args: Sequence[Any],
            params: dict[str, Any]) -> None:
    """Judges what is bound; what a transformation binds is bound again."""
    if not traces.is_transformation(trace):
      divergence.judge(trace, self.prim, params, args)

  def install(self) -> None:
    """Has operands and parameters solved before any trace is given them."""
    prim, is_solved, solve_bound = self.prim, self.is_solved, self.solve
    noted = requirements.noted

    def judge(trace, args, params):
      if noted:
        self.judge(trace, args, params)

    if not releases.binds_with_types():
      def bound_by_value(trace, args, params):
        if vt.checking() and not (solved := is_solved(
            params, list(map(vt.typeof, args)), False, trace)):
          with core.set_current_trace(trace):
            args, params, _ = solve_bound(
                args, params, list(map(vt.typeof, args)), solved is None)
            judge(trace, args, params)
        elif vt.checking():
          judge(trace, args, params)
        return core.Primitive.bind_with_trace(prim, trace, args, params)
      prim.def_bind_with_trace(bound_by_value)
      return

    # As vt.checking() and the like, in the fewest steps.
    check, current = releases.check_option(), core.trace_ctx

    def bound(trace, args, avals, params):
      if check.value and not (
          solved := is_solved(params, avals, False, trace)):
        before = current.trace  # as core.set_current_trace
        current.set_trace(trace)
        try:
          args, params, avals = solve_bound(
              args, params, avals, solved is None)
          judge(trace, args, params)
        finally:
          current.set_trace(before)
      elif noted and check.value:
        judge(trace, args, params)
      try:
        low = trace.requires_low
      except AttributeError:  # a library's own
        low = True
      if low and prim.is_high(*avals, **params):
        return core.Primitive.bind_with_trace(prim, trace, args, avals, params)
      return trace.process_primitive(prim, args, params)

    prim.def_bind_with_trace(bound)


def _check_promotion(site: Site, args, carry: tuple[int, int],
                     called: bool) -> None:
  """Refuses carries that must not be promoted, or not without a new trace.

  Args:
    site: a solved loop with operands that must vary over more axes.
    args: its operands.
    carry: which of them are the carry, from one position to another.
    called: whether the loop's caller is at hand.

  Raises:
    TypeError: if an option says that casts are to be written out.
    CarryGrew: if the body differentiates, and may do so in another way then.
  """
  if not vt.promotes_where_checked():
    raise TypeError(_refusal(site))
  new = flow.union([to - now for now, to in zip(site.ins, site.operands)])
  sums = any(outdated.may_be_wrong(kid, new) for kid in site.kids)
  # What comes of a derivative isn't one that the body takes.
  grown = (_first_growth(site) if vt.nontrivial(new) and (
      called or not from_derivative(site.eqn)) else [])
  if sums or grown:
    raise retrace.CarryGrew(zip(args, grown or site.operands), carry, new)


def _first_growth(site: Site) -> list[Axes]:
  """The axes of the operands after a trip, of a loop that differentiates.

  That they do is certain, with the body as it was traced. With a carry that
  varies a derivative can be summed that wasn't, and what it changes needn't
  vary then. A carry that varies by a predicate alone counts as none: JAX
  accepts it, and runs the body as it was traced.

  Args:
    site: a solved loop.

  Returns:
    The axes of each operand; empty if none grows, or nothing is differentiated.
  """
  if not any(contents(kid.jaxpr).differentiates for kid in site.kids):
    return []
  again = Site(site.eqn)
  with vt.predicates_agreeing():
    again.run(site.ins)
  return again.grown


def same_axes(variables: Sequence[core.Var], avals: Sequence[Any]) -> bool:
  """True if variables vary over the same axes as the types beside them."""
  return vt.vary_alike([v.aval for v in variables], avals)


class Operands(NamedTuple):
  """Functions for operands of a kind that isn't cast.

  Attributes:
    in_current_trace: gives an operand, as the current trace holds it.
    widened_or_copied: gives, of an operand, the axes that it must vary over,
      and whether the equation writes to it, what to bind in its place.
  """
  in_current_trace: Callable[[Any], Any]
  widened_or_copied: Callable[[Any, Axes, bool], Any]


check_agreement = trace_key.option(
    config.bool_state, 'jax_check_agreement', False,
    'Inside shard_map with the check on, compare predicates across devices '
    'where it was worked out that they agree, as the program runs. '
    'A difference is an error. Each comparison takes two collectives and a '
    'call of Python.')


def comparing(axes: Axes, by_type: bool = True) -> dict[str, Any] | None:
  """The parameters of a comparison of a predicate along these axes.

  Args:
    axes: the axes.
    by_type: whether a type says that it agrees. If not, something communicates,
      and nothing has to agree once a vmap maps over the predicate.

  Returns:
    None if nothing is compared: by the option, or as no axis counts.
  """
  if not check_agreement.value or not (axes := vt.nontrivial(axes)):
    return None
  return dict(along=vt.ordered(axes), by_type=by_type,
              where=source_info_util.summarize(source_info_util.current()))


# By name, primitives that mark a predicate; the package's modules fill it.
marks: dict[str, core.Primitive] = {}

# By the kind, 'ref'; the modules that the package lists fill it.
operands: dict[str, Operands] = {}


def ref_in_current_trace(ref):
  """A ref, as the current trace holds it, where its type can grow."""
  rule = operands.get('ref')
  return rule.in_current_trace(ref) if rule else ref


def types_of(values, before, avals) -> list:
  """Types of values: for an unchanged value the given one, else its own."""
  return [a if x is y else vt.typeof(x)
          for a, x, y in zip(avals, values, before)]


def refs_in_current_trace(args, avals) -> tuple[list, list]:
  """Operands and types, with refs as the current trace holds them."""
  held = [ref_in_current_trace(x) if vt.is_ref(a) else x
          for x, a in zip(args, avals)]
  return held, types_of(held, args, avals)


def check_refs(jaxpr: core.Jaxpr, given, avals) -> None:
  """Refuses a jaxpr that differentiates by a ref's content of another type.

  A jaxpr that is lowered was traced as a whole, and is right as it is.

  Args:
    jaxpr: what is about to be bound.
    given: the operands, as they were given.
    avals: their types in the current trace.

  Raises:
    RefGrew: if a ref varies that didn't when the jaxpr was traced.
  """
  trace = core.trace_ctx.trace
  if hasattr(trace, 'frame') and getattr(trace, 'requires_low', False):
    return
  axes = outdated.by_refs(jaxpr, avals)
  if axes:
    raise retrace.RefGrew(
        [(x, vt.varying(a)) for x, a in zip(given, avals)
         if vt.is_ref(a) and axes & vt.varying(a)], axes)


def _outgrown(site: Site) -> Axes:
  """The axes missing from outer refs, on releases without widened ones."""
  return Axes().union(*(
      region.read(v) - vt.varying(v.aval) for region in site.kids
      for v in region.invars if vt.is_ref(v.aval)))


def _is_as_traced(prim: core.Primitive, params, avals) -> bool:
  """True if an equation's types agree as they are, whatever the predicate."""
  types = lambda vs: [vt.varying(v.aval) for v in vs]
  ins = list(map(vt.varying, avals))
  if prim.name == 'cond':
    branches = anatomy.branches(params)
    return all(types(j.invars) == ins[1:]
               and types(j.outvars) == types(branches[0].outvars)
               for j in branches)
  loop = (anatomy.while_loop if prim.name == 'while' else anatomy.scan)(params)
  body, carried = loop.body, loop.split(ins)[2]
  return types(body.invars) == ins[loop.tests:] and (
      types(body.outvars)[:loop.carries] == carried)


def _ref_message(prim: core.Primitive, axes: Axes) -> str:
  """The error for a ref that has to vary, on releases without widened ones."""
  names, make = tuple(sorted(axes)), releases.new_ref_name()
  return (f'{make}: expected a ref that varies over {names} where a '
          f'{prim.name} writes such values to it. Got one that does not. Make '
          'it of a value that varies: '
          f'{make}({releases.varying_cast("x", names)}).' +
          pages.see('varying_errors.md#writes-to-refs'))


def operands_at_solution(site: Site, args, avals) -> list:
  """The operands of a solved equation, as it needs them."""
  out = []
  for n, (x, aval, axes) in enumerate(zip(args, avals, site.operands)):
    if not axes or not axes - vt.varying(aval):
      out.append(x)
    elif 'ref' in operands and vt.is_ref(aval):
      out.append(operands['ref'].widened_or_copied(
          x, axes, n in site.writes))
    else:
      out.append(vt.cast(x, axes))
  return out


def solve(prim: core.Primitive, params, args, avals,
          binders: Sequence[core.Var | None] = ()) -> Site:
  """The solution for an equation that is about to be bound."""
  eqn = core.new_jaxpr_eqn([vt.new_var(a) for a in avals], [], prim, params,
                           core.no_effects, source_info_util.current())
  site = Site(eqn)
  ins = [vt.varying(a) for a in avals]
  site.given = lambda n: agreement.differs(args[n])
  site.bound = [i if v is None else vt.varying(v.aval)
                for i, v in itertools.zip_longest(ins, binders)]
  for n, v in enumerate(binders):
    if v is not None and isinstance(avals[n], core.ShapedArray):
      ins[n] |= vt.varying(v.aval)
  site.run(ins)
  while any(axes - ins[n] for n, axes in site.writes.items()):
    written = {id(args[n]): axes for n, axes in site.writes.items()}
    ins = [i | written.get(id(x), NO_AXES) for i, x in zip(ins, args)]
    site.run(ins)
  return site


def _refusal(site: Site) -> str:
  wanted = [f'  * operand {n}, of type {v.aval.str_short()}, along '
            f'{vt.ordered(to - now)}' for n, (v, now, to) in enumerate(zip(
                site.eqn.invars, site.ins, site.operands)) if to != now]
  return (f'lax.{site.eqn.primitive.name}: these operands must vary over more '
          'mesh axes than they do, because what the loop or branch makes of '
          f'them does (its predicate varies over {vt.ordered(site.predicate)}):'
          '\n' + '\n'.join(wanted) + '\nCast them with jax.lax.pcast(..., '
          "to='varying') (jax.lax.pvary on older releases), or set the option "
          'jax_shard_map_promote_carries to True to have that done.' +
          pages.see('varying.md#options'))
