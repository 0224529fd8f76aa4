# SPDX-License-Identifier: Apache-2.0
"""Dataflow of varying axes: those of each value, given the inputs'.

An abstract interpretation on sets of axis names alone: no operation is traced
and no user code runs. Inputs can only be raised above the types at which the
jaxpr was traced, so an equation none of whose operands was raised keeps its
traced types and costs one look-up per operand. Loops are solved as least
fixpoints, nested ones included.

Rule of an ordinary equation: what its operands vary over beyond what they did
when it was traced, its outputs do too. That is exact for elementwise operations
and for collectives (``psum`` over 'x' of a value raised to {x, y} gives {y}).
Loops, branches, calls and nested shard_maps have rules of their own.

Every place in the nest of jaxprs has one ``Region``, which keeps its last
solution. Solutions grow monotonically, so a region that is visited again goes
on from there rather than from the bottom; that is what makes the whole linear:
a region is entered once more than its parent at most, plus once for each time
that one of its own carries grew. Entered again, it looks at what uses the
inputs that grew, and what uses that. ``visits`` counts the equations evaluated.

Where a predicate comes to vary, devices diverge along the axes that it may
differ along, which can be fewer (``dependences``). That is asked there alone,
of the values at hand: of a region's inputs through the equation that holds it,
of the outermost one's through whoever is about to bind it.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import heapq
from typing import Any

from jax._src import core
from jax._src.varying import dependences
from jax._src.varying import types as vt
from jax._src.varying.contents import contents, jaxprs_in, without_unused_sums
from jax._src.varying.types import Axes, NO_AXES

_UNSOLVED: Any = None  # in place of a solution
visits = 0  # equations evaluated since the module was imported, for tests


class Region:
  """One jaxpr at one place: its raised variables and its sub-regions.

  Attributes:
    around: the equation that holds the jaxpr, None of the outermost region.
    number: which of the jaxprs that it holds.
    facts: of the outermost one, gives the axes along which an input may differ,
      by its number, if that is known.
  """

  __slots__ = ('jaxpr', 'invars', 'outvars', 'traced', 'ins', 'outs', 'raised',
               'sites', 'refs', 'agrees', 'evidence', 'users', 'places',
               'around', 'number', 'given', 'facts', 'state')

  def __init__(self, jaxpr: core.Jaxpr, around: Site | None = None,
               number: int = 0):
    self.jaxpr = jaxpr
    self.around, self.number = around, number
    self.given: list[dependences.Dependence | None] | None = None
    self.facts: Callable[[int], Axes] | None = None
    self.state: list[Axes] | None = None
    self.invars, self.outvars = jaxpr.invars, jaxpr.outvars
    self.traced = [vt.varying(v.aval) for v in self.invars]
    self.ins: list[Axes] | None = None
    self.outs: list[Axes] = []
    self.raised: dict[core.Var, Axes] = {}
    self.sites: dict[int, Site] = {}
    self.refs = vt.has_refs(jaxpr)
    self.agrees = contents(jaxpr).agrees
    # What ``outdated`` knows of it.
    self.evidence: tuple[Any, Any] | None = None
    # By number, the equations that use a variable, and the outputs that it is.
    self.users: dict[core.Var, list[int]] | None = None
    self.places: dict[core.Var, list[int]] = {}

  def read(self, atom) -> Axes:
    if type(atom) is not core.Literal and atom in self.raised:
      return self.raised[atom]
    return vt.varying(atom.aval)

  def entry(self, n: int) -> Axes:
    """The axes of input ``n``, a ref's with those of what is written to it."""
    return self.read(self.invars[n])

  def differs(self, atom, own: bool = True) -> Axes:
    """The varying axes of a value along which it may differ.

    Args:
      atom: the value.
      own: whether to count what it did as the jaxpr was traced.
    """
    if type(atom) is core.Literal:
      return NO_AXES
    axes = self.read(atom)
    if not axes:
      return axes
    known = dependences.of_values(self.jaxpr)[atom]
    return axes & known.axes(lambda n: self._input_differs(n, own),
                             lambda n: self._input_varies(n, own), own)

  def _input_varies(self, n: int, own: bool) -> Axes:
    if n >= len(self.invars):
      return self._input_differs(n, own)
    axes = self.read(self.invars[n])
    return axes if own else axes - self.traced[n]

  def _input_differs(self, n: int, own: bool) -> Axes:
    if n >= len(self.invars):  # what is captured
      return self.read(self.jaxpr.constvars[n - len(self.invars)]) if own else (
          NO_AXES)
    site, axes = self.around, self.read(self.invars[n])
    less = NO_AXES if own else self.traced[n]
    if site is None or not axes:
      if self.facts and axes - less:
        axes &= self.facts(n)
      return axes - less
    place = dependences.operand_of(site.eqn, self.number, n)
    if place is not None and axes <= site.operand_differs(place, own):
      return axes  # in the first trip
    if self.given is None:
      self.given = dependences.of_inputs(site.eqn, self.number)
    known = self.given[n]
    if known is None:
      return axes - less
    # What is cast outside can come to differ along what its type named.
    return axes & known.axes(
        lambda k: site.operand_differs(k, own),
        lambda k: site.ins[k] - (
            NO_AXES if own else vt.varying(site.eqn.invars[k].aval)), own)

  def run(self, ins: Sequence[Axes]) -> list[Axes]:
    """The outputs' axes when the inputs vary over ``ins``."""
    ins = list(ins)
    if self.agrees:
      if ins == self.ins and self.state == self.input_facts():
        return self.outs
    elif ins == self.ins:
      return self.outs
    before, self.ins, raised = self.ins, ins, self.raised
    if before is not None and not self.refs and not self.agrees:
      self.follow([(v, axes) for v, axes, was in zip(self.invars, ins, before)
                   if axes is not was and axes != was])
      return self.outs
    for v, axes, traced in zip(self.invars, ins, self.traced):
      if axes != traced:
        raised[v] = axes | self.read(v) if vt.is_ref(v.aval) else axes
    if raised or self.refs or self.agrees:
      while self.sweep():
        pass
    self.outs = [self.read(v) for v in self.outvars]
    if self.agrees:
      self.state = self.input_facts()
    return self.outs

  def input_facts(self) -> list[Axes]:
    """The axes along which each input may differ.

    Where nobody knows the outermost region's inputs, those along which each has
    come to differ.
    """
    own = self.facts_are_known()
    return [self._input_differs(n, own) for n in range(len(self.invars))]

  def facts_are_known(self) -> bool:
    """True if facts of the outermost region's inputs are at hand."""
    return (self.facts is not None if self.around is None else
            self.around.facts_are_known())

  def sweep(self) -> bool:
    """Solves the equations in order; whether a ref grew, and so again."""
    grew, raised, refs = False, self.raised, self.refs
    for eqn in self.jaxpr.eqns:
      for v in eqn.invars:
        if type(v) is not core.Literal and v in raised:
          break
      else:
        if not (refs and vt.uses_refs(eqn) or
                self.agrees and _holds_agreed(eqn)):
          continue
      site = self.site(eqn)
      for v, axes in zip(eqn.outvars, site.run(map(self.read, eqn.invars))):
        if refs and vt.is_ref(v.aval):
          axes |= self.read(v)
        if axes != vt.varying(v.aval):
          raised[v] = axes
      for n, axes in site.writes.items():
        ref: Any = eqn.invars[n]
        if axes - self.read(ref):
          raised[ref] = axes | self.read(ref)
          grew = True
    return grew

  def follow(self, grown: list[tuple[core.Var, Axes]]) -> None:
    """Solves what uses values that grew since the last run, without refs."""
    if self.users is None:
      self.users, self.places = {}, {}
      for n, eqn in enumerate(self.jaxpr.eqns):
        for v in eqn.invars:
          if type(v) is not core.Literal:
            self.users.setdefault(v, []).append(n)
      for n, v in enumerate(self.outvars):
        if type(v) is not core.Literal:
          self.places.setdefault(v, []).append(n)
    outs, eqns = list(self.outs), self.jaxpr.eqns
    todo: list[int] = []  # a heap, so that operands are solved before uses
    while True:
      for v, axes in grown:
        self.raised[v] = axes
        for n in self.places.get(v, ()):
          outs[n] = axes
        for n in self.users.get(v, ()):
          if n not in todo:
            heapq.heappush(todo, n)
      if not todo:
        break
      eqn = eqns[heapq.heappop(todo)]
      solved = self.site(eqn).run(map(self.read, eqn.invars))
      grown = [(v, axes) for v, axes in zip(eqn.outvars, solved)
               if axes != self.read(v)]
    self.outs = outs

  def site(self, eqn: core.JaxprEqn) -> Site:
    global visits
    visits += 1
    site = self.sites.get(id(eqn))
    if site is None:
      site = self.sites[id(eqn)] = Site(eqn, self)
    return site


def _holds_agreed(eqn: core.JaxprEqn) -> bool:
  """True if a type in an equation says that a predicate agrees."""
  return vt.name_of(eqn.primitive) == 'agreed' or any(
      contents(j).agrees for j in jaxprs_in(eqn.params))


class Site:
  """One equation in a region: its last solution.

  Attributes:
    eqn: the equation as it was traced.
    ins: what its operands vary over.
    operands: what its operands must be cast to before they are passed on.
    grown: of a loop, what its operands vary over once the carry has grown by
      one trip; empty if it doesn't grow.
    outs: what its outputs vary over.
    kids: the regions of the jaxprs in its parameters.
    writes: for operands that are refs, what is written to them varies over.
    predicate: along what devices diverge at the choice of a branch, or of
      another trip.
    agreeing: along what else it varies, though all devices have the same.
    opaque: whether it holds jaxprs, or traced types, that no rule knows.
    selects: whether all branches run, because vmap maps over the index.
    region: the region that it is in, None if it is about to be bound.
    given: of one that is about to be bound, gives the axes along which an
      operand may differ, by its number.
    bound: its operands' types as its jaxprs were traced, by number, if others.
  """

  __slots__ = ('eqn', 'ins', 'operands', 'grown', 'outs', 'kids', 'writes',
               'rule', 'predicate', 'agreeing', 'opaque', 'selects', 'region',
               'given', 'bound')

  def __init__(self, eqn: core.JaxprEqn, region: Region | None = None):
    self.eqn = eqn
    self.region = region
    self.given: Callable[[int], Axes] | None = None
    self.bound: Sequence[Axes] | None = None
    self.ins: list[Axes] = _UNSOLVED
    self.operands: list[Axes] = []
    self.grown: list[Axes] = []
    self.outs: list[Axes] = []
    self.kids: list[Region] = []
    self.writes: dict[int, Axes] = {}
    self.predicate = self.agreeing = NO_AXES
    self.opaque = self.selects = False
    self.rule = rules.get(vt.name_of(eqn.primitive), unknown)

  def run(self, ins) -> list[Axes]:
    ins = list(ins)
    if ins != self.ins or self.region is not None and self.region.agrees:
      self.ins = ins
      self.rule(self, ins)
    return self.outs

  def regions(self, *jaxprs) -> list[Region]:
    if not self.kids:
      self.kids = [Region(vt.open_jaxpr(j), self, n)
                   for n, j in enumerate(jaxprs)]
    return self.kids

  def facts_are_known(self) -> bool:
    return (self.given is not None if self.region is None else
            self.region.facts_are_known())

  def operand_differs(self, n: int, own: bool = True) -> Axes:
    """The axes along which an operand may differ, as ``Region.differs``."""
    if self.region is not None:
      return self.region.differs(self.eqn.invars[n], own)
    axes = self.ins[n]
    if axes and self.given:
      axes &= self.given(n)
    if own or self.bound is None:
      return axes if own else NO_AXES
    return axes - self.bound[n]

  def diverging(self, axes: Axes, predicate: Any, differ: Callable[[], Axes]
            ) -> Axes:
    """The axes along which devices diverge at a predicate.

    Args:
      axes: those that it varies over.
      predicate: the variable that it is. Devices diverge along what that
        varies over, which was asked when its jaxpr was traced.
      differ: gives the axes along which it may differ, now that it varies over
        more.
    """
    axes = vt.nontrivial(axes)
    if axes and not axes <= vt.varying(predicate.aval):
      diverging = axes & (vt.varying(predicate.aval) | differ())
      self.agreeing = axes - diverging
      return diverging
    return axes


# By the primitive's name; the modules that the package lists fill it.
rules: dict[str, Callable[[Site, list[Axes]], None]] = {}


def refs_widen() -> bool:
  """True if a ref's type follows what is written to it: from 0.9.1 on."""
  return 'swap' in rules


def diverges(site: Site, axes: Axes) -> list[Region]:
  """Notes that devices along ``axes`` diverge at this site.

  Returns:
    The site's regions, without sums over these axes that nothing uses.
  """
  site.predicate |= axes
  for n, region in enumerate(site.kids):
    used = without_unused_sums(region.jaxpr, axes)
    if used is not region.jaxpr:
      site.kids[n] = Region(used, site, n)
      if region.ins is not None:
        site.kids[n].run(region.ins)
  return site.kids


def union(sets) -> Axes:
  return NO_AXES.union(*sets)


def ordinary(site: Site, ins: list[Axes]) -> None:
  """Operands are made alike if they were; new axes reach every output."""
  traced = [vt.varying(v.aval) for v in site.eqn.invars]
  new = union(ins) - union(traced)
  joined = union(ins)
  alike = all(t == traced[0] for t in traced)
  site.operands = [
      joined if alike and isinstance(v.aval, core.ShapedArray) else i
      for v, i in zip(site.eqn.invars, ins)]
  site.outs = [vt.varying(v.aval) | new for v in site.eqn.outvars]


def each(site: Site, ins: list[Axes]) -> None:
  """Output k depends on operand k only: casts, reductions over devices."""
  site.operands = ins
  site.outs = [vt.varying(o.aval) | (i - vt.varying(v.aval))
               for o, v, i in zip(site.eqn.outvars, site.eqn.invars, ins)]


# Their jaxprs combine two elements, and have no varying axes in their types.
_REDUCERS = ('reduce', 'scatter', 'select_and_scatter')


def applies_jaxpr(primitive: core.Primitive, params: dict[str, Any]) -> bool:
  """True if an equation has a jaxpr in whose types varying axes are."""
  return (not vt.name_of(primitive).startswith(_REDUCERS)
          and next(jaxprs_in(params), None) is not None)


def unknown(site: Site, ins: list[Axes]) -> None:
  """An ordinary equation, unless there are types in its parameters."""
  ordinary(site, ins)
  for n in vt.written(site.eqn):
    site.writes[n] = union(ins)
  primitive, params = site.eqn.primitive, site.eqn.params
  site.opaque = (vt.name_of(primitive) == 'call_hi_primitive' or
                 applies_jaxpr(primitive, params))
  if site.opaque:  # what is inside may join what it was to keep apart
    site.outs = [a | union(ins) if isinstance(v.aval, core.ShapedArray) else a
                 for v, a in zip(site.eqn.outvars, site.outs)]


def record_ref_writes(site: Site, region: Region, ins: list[Axes],
                      first: int = 0) -> list[Axes]:
  """The inputs' axes, those of refs raised by what is written to them.

  Args:
    site: the site of an equation that passes operands on to a jaxpr.
    region: the region of that jaxpr, solved for ``ins``.
    ins: what the inputs of the jaxpr vary over.
    first: which operand is the first of the jaxpr's inputs.

  Returns:
    What the inputs must vary over.
  """
  if not region.refs:
    return ins
  ins = list(ins)
  for n, v in enumerate(region.jaxpr.invars):
    if vt.is_ref(v.aval):
      ins[n] |= region.entry(n)
      site.writes[first + n] = ins[n]
  return ins
