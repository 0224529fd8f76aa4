# SPDX-License-Identifier: Apache-2.0
"""Builds a traced jaxpr again at the types that ``flow`` found.

One pass over each jaxpr, with no tracing: an equation none of whose operands
changed type is kept as it is, another is copied with new variables, casts are
put on operands that must vary over more axes, and casts that have nothing left
to do are dropped. The result is what tracing the program with those casts
written out by hand gives.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import itertools
from typing import Any
import weakref

from jax._src import config
from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src import source_info_util
from jax._src.varying import flow
from jax._src.varying import notes
from jax._src.varying import outdated
from jax._src.varying import reduced
from jax._src.varying import requirements
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying import verify
from jax._src.varying.contents import contents
from jax._src.varying.types import Axes

# Calls of one jaxpr at the same types must share one jaxpr, so that it is
# lowered once.
_built: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def rebuild(region: flow.Region, outs: Sequence[Axes] | None = None
            ) -> core.Jaxpr:
  """The region's jaxpr at its solution.

  Args:
    region: a solved region.
    outs: what the outputs must vary over, if more than they do.

  Returns:
    The jaxpr itself if nothing changed, else a new one.

  Raises:
    TracedTooEarly: the jaxpr differentiates by a value that was replicated when
      it was traced, and now isn't.
  """
  jaxpr = region.jaxpr
  outs = region.outs if outs is None else outs
  if not region.raised and [vt.varying(v.aval) for v in region.outvars] == outs:
    return jaxpr
  outdated.refuse_wrong(region)
  known = _built.setdefault(jaxpr, {})
  key = (tuple(region.ins or ()), tuple(outs), tuple(region.state or ()),
         mesh_lib.get_abstract_mesh())
  if key not in known:
    known[key] = _Builder(region).build(outs)
    if contents(known[key]).requires:
      requirements.note()
    if config.enable_checks.value:
      verify.verify(known[key], True)
  return known[key]


class _Builder:
  """The state of one jaxpr's re-typing."""

  def __init__(self, region: flow.Region):
    self.region = region
    self.eqns: list[core.JaxprEqn] = []
    self.new: dict[core.Var, core.Var] = {}
    self.casts: dict = {}
    self.added: set = set()  # effects
    # For casts of results that no equation precedes.
    eqns = region.jaxpr.eqns
    self.source = (eqns[0].source_info if eqns else
                   source_info_util.new_source_info())
    self.ctx = eqns[0].ctx if eqns else None

  def build(self, outs: Sequence[Axes]) -> core.Jaxpr:
    region, jaxpr = self.region, self.region.jaxpr
    constvars = [self.define(v) for v in jaxpr.constvars]  # refs, if anything
    raised = region.raised
    invars = [self.define(v) if v in raised else v for v in region.invars]
    for eqn in jaxpr.eqns:
      site = region.sites.get(id(eqn))
      if site is None:
        # A cast that has been dropped leaves its operand in its place.
        for v in eqn.invars:
          if type(v) is core.Var and v in self.new:
            eqn = eqn.replace(invars=[self.read(v) for v in eqn.invars])
            break
        self.eqns.append(eqn)
      else:
        self.source, self.ctx = eqn.source_info, eqn.ctx
        builders.get(vt.name_of(eqn.primitive), copy)(self, site)
    outvars = [self.cast(v, a) for v, a in zip(region.outvars, outs)]
    # Later releases keep the captured values with the variables.
    values = getattr(jaxpr, 'consts', ())
    return jaxpr.replace(constvars=constvars, invars=invars,
                         eqns=self.eqns, outvars=outvars,
                         effects=(self.effects(jaxpr.effects, self.new)
                                  | self.added),
                         debug_info=jaxpr.debug_info,
                         **(dict(consts=values) if values else {}))

  def define(self, v: core.Var) -> core.Var:
    """The variable that is bound in place of ``v``."""
    if v in self.region.raised:
      aval = vt.with_varying(v.aval, self.region.raised[v])
      self.new[v] = (core.DropVar(aval) if isinstance(v, core.DropVar)
                     else vt.new_var(aval))
      return self.new[v]
    return v

  def read(self, atom):
    return atom if type(atom) is core.Literal else self.new.get(atom, atom)

  def cast(self, atom, axes: Axes):
    """The atom, or an atom that holds it cast to vary along ``axes``."""
    x = atom if type(atom) is core.Literal else self.new.get(atom, atom)
    missing = axes - vt.varying(x.aval)
    if not missing or not isinstance(x.aval, core.ShapedArray):
      return x
    key = (x, axes) if type(x) is not core.Literal else (id(x), axes)
    if key not in self.casts:
      for prim, part in reduced.steps(x.aval, missing):
        out = vt.new_var(vt.with_varying(x.aval, vt.varying(x.aval) | part))
        self.emit([x], [out], prim, vt.cast_params(part))
        x = out
      self.casts[key] = x
    return self.casts[key]

  def effects(self, effects, new):
    """Effects on inputs, of the new variables."""
    return effects and type(effects)(
        e.replace(new[e.input]) if type(getattr(e, 'input', None)) is core.Var
        and e.input in new else e for e in effects)

  def copied_ref(self, ref, axes: Axes):
    """A ref, or a new one with its content cast to vary along ``axes``."""
    if not axes - vt.varying(ref.aval):
      return ref
    for prim, params in vt.copy_ref_steps(ref.aval):
      if prim is core.pvary_p:
        ref = self.cast(ref, axes)
      else:
        aval, effects = prim.abstract_eval(ref.aval, **params)
        out = vt.new_var(aval)
        effects = core.resolve_input_effects(effects, [ref])
        self.emit([ref], [out], prim, params, effects)
        self.added |= {e for e in effects if not hasattr(e, 'input')}
        ref = out
    return ref

  def emit(self, invars, outvars, primitive, params, effects=core.no_effects):
    ctx = self.ctx
    if ctx is not None and ctx.cur_abstract_mesh.empty:
      ctx = None  # traced outside of shard_map; a cast needs the mesh of here
    self.eqns.append(core.new_jaxpr_eqn(
        invars, outvars, primitive, params, effects, self.source, ctx))


# By the primitive's name; the modules that the package lists fill it.
builders: dict[str, Callable[[_Builder, flow.Site], None]] = {}


def copy(b: _Builder, site: flow.Site, /, **params) -> None:
  """Copies an equation at its new types, with ``params`` replaced."""
  eqn = site.eqn
  invars = [b.cast(v, a) for v, a in zip(eqn.invars, site.operands)]
  outvars = [b.define(v) for v in eqn.outvars]
  effects = eqn.effects
  if effects and vt.uses_refs(eqn):
    for n, axes in enumerate(site.operands):
      if n not in site.writes and vt.is_ref(invars[n].aval):
        invars[n] = b.copied_ref(invars[n], axes)
    effects = b.effects(effects, {
        v: x for v, x in zip(eqn.invars, invars) if type(v) is core.Var})
  b.emit(invars, outvars, eqn.primitive, {**eqn.params, **params}, effects)


# The traces in which a ref that they take has risen.
raised_refs: Any = weakref.WeakKeyDictionary()
_raised = raised_refs.data  # to see quickly that there is none


_LOOPS = frozenset(['scan', 'fori_loop', 'while_cond', 'while_body'])


def rebuild_if_refs_widened(trace, traced):
  """A trace's jaxpr and captured values, at the types that its refs rose to.

  Args:
    trace: the trace that has ended.
    traced: a pair of the jaxpr and the values that it captures.

  Returns:
    The pair, with the jaxpr re-typed if a ref from outside was widened.

  Raises:
    RefGrew: a loop's body differentiates by the content of such a ref.
  """
  if _raised and raised_refs.pop(trace, None):
    jaxpr, captured = traced
    region = flow.Region(jaxpr)
    region.run([vt.varying(v.aval) for v in jaxpr.invars])
    binders = [*jaxpr.constvars, *jaxpr.invars]
    grown = [region.read(v) - vt.varying(v.aval) for v in binders]
    new = flow.union(grown)
    if new and (outdated.may_be_wrong(region, new)
                or vt.nontrivial(new) and contents(jaxpr).differentiates):
      if trace.frame.debug_info.traced_for in _LOOPS:
        raise retrace.RefGrew(
            [(x, region.read(v)) for v, x, axes in itertools.zip_longest(
                binders, captured, grown) if axes], new)
      outdated.accept(region)
      return notes.with_note(rebuild(region), grown=tuple(grown)), captured
    return rebuild(region), captured
  return traced
