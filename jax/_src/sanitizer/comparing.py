# SPDX-License-Identifier: Apache-2.0
"""Bookkeeping while the body of a shard_map is evaluated with comparisons.

A comparer has the comparisons of a stretch of the program that the same devices
run: the body of a shard_map, of a loop or of a branch. Values wait there until
they are flushed: before the program branches or loops, at the stretch's end,
and when many wait.
A flush is one reduction over devices for each set of axes, of all that should
be the same along them, and a branch that is only taken when they differ; no
collective is in it. One truth value, whether something was found, goes through
loops and branches, so that each run sends its first difference only. It is the
same along all axes along which the devices don't diverge there.
"""
from __future__ import annotations

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
from jax._src import core
from jax._src.mend import traces
from jax._src.sanitizer import digests
from jax._src.sanitizer import findings as findings_lib
from jax._src.sanitizer import sites as sites_lib
import jax.numpy as jnp

_MOST_PENDING = 48


class Known(NamedTuple):
  """Facts about a value besides its type.

  Attributes:
    axes: along which it may differ between devices.
    compared: whether it is the same along all others, as compared or made of
      what is by operations that only move or copy.
  """
  axes: frozenset
  compared: bool


class Pending(NamedTuple):
  """A value that waits to be compared, with its digest."""
  site: sites_lib.Site
  value: Any
  digest: Any


@dataclasses.dataclass
class Plan:
  """State that the comparisons of one program share.

  Attributes:
    rtol: the tolerance; None to compare bits.
    max_checks: at most as many results of equations are compared, from the
      first on; None for all.
    functions: names of those in which they are; None for all.
    findings: where devices send.
    notes: places of what isn't compared, as nothing is known of it.
    claims: the equations, by id, whose predicate is taken to agree and compared
      for that.
  """
  rtol: float | None
  max_checks: int | None
  functions: frozenset | None
  findings: findings_lib.Findings
  notes: dict[str, None] = dataclasses.field(default_factory=dict)
  claims: set[int] = dataclasses.field(default_factory=set)
  checks: int = 0
  numbers: int = 0

  def number(self) -> int:
    """The next number in the program's order."""
    self.numbers += 1
    return self.numbers

  def wants(self, eqn: core.JaxprEqn) -> bool:
    """True if an equation's results are to be compared."""
    if self.functions is not None and not sites_lib.is_in(eqn, self.functions):
      return False
    if self.max_checks is not None and self.checks >= self.max_checks:
      return False
    self.checks += 1
    return True

  def note(self, eqn: core.JaxprEqn) -> None:
    """Notes an equation of which nothing is known."""
    name = getattr(eqn.primitive, 'name', str(eqn.primitive))
    self.notes[f'`{name}` at {sites_lib.place(eqn)}'] = None


class Comparer:
  """The comparisons of a stretch of the program that the same devices run.

  Attributes:
    plan: the program's.
    names: the manual axes, in order, whose coordinates are sent.
    coordinates: 0 and those of this device, an array.
    sizes: of the axes.
    axes: the manual axes of more than one device along which none diverge here.
    manual: all of more than one device.
    typed: those that types tell about.
    loops: around here, and ``counters``: 0 and their iterations, an array.
    found: whether something was found, on this device.
  """

  def __init__(self, plan: Plan, names: tuple, coordinates: Any, sizes: dict,
               axes: frozenset, manual: frozenset, typed: frozenset,
               loops: tuple, counters: Any, found: Any):
    self.plan, self.names, self.coordinates = plan, names, coordinates
    self.sizes, self.axes, self.manual, self.typed = sizes, axes, manual, typed
    self.loops, self.counters, self.found = loops, counters, found
    self.pending: list[Pending] = []

  def within(self, found: Any, diverging: frozenset = frozenset(),
             loop: sites_lib.Loop | None = None, count: Any = None) -> Comparer:
    """The comparer of a loop's body or a branch, without diverging axes."""
    loops, counters = self.loops, self.counters
    if loop is not None:
      loops = (*loops, loop)
      counters = jnp.concatenate([counters, count[None]])
    return Comparer(self.plan, self.names, self.coordinates, self.sizes,
                  self.axes - diverging, self.manual, self.typed, loops,
                  counters, found)

  def ordered(self, axes: frozenset) -> tuple:
    return tuple(a for a in self.names if a in axes)

  def compare(self, make_site: Callable[[tuple], sites_lib.Site], value: Any,
              axes: frozenset) -> None:
    """Compares a value along axes, now or with others.

    Args:
      make_site: gives the site, by the axes in order.
      value: an array.
      axes: those along which it should be the same.
    """
    order = self.ordered(axes & self.axes)
    if not order or not digests.comparable(
        value if isinstance(value, jax.Array) else traces.typeof(value)):
      return
    if not isinstance(value, jax.Array):  # 0.5.1's asarray takes no random keys
      value = jnp.asarray(value)
    if self.plan.rtol is None:
      digest = digests.digest(value)
    else:
      digest = digests.beyond(value, order, self.plan.rtol)
    self.pending.append(Pending(make_site(order), value, digest))
    if len(self.pending) >= _MOST_PENDING:
      self.flush()

  def claimed(self, eqn: core.JaxprEqn, axes: frozenset) -> frozenset:
    """Notes a predicate's claim to agree; returns the axes to compare it along.

    Args:
      eqn: the equation that takes it so.
      axes: along which.
    """
    axes = axes & self.axes
    if axes:
      self.plan.claims.add(id(eqn))
    return axes

  def flush(self) -> None:
    """Compares what is pending between devices, and reports differences."""
    pending, self.pending = self.pending, []
    if not pending:
      return
    bad = self._bad(pending)
    anyone = jnp.any(bad)
    if any(frozenset(p.site.axes) != self.axes for p in pending):
      anyone = self.on_any_device(anyone)
    flush = findings_lib.Flush(self.plan.number(),
                               tuple(p.site for p in pending), self.loops,
                               self.names)
    send = functools.partial(self.plan.findings.add, flush)
    values = [digests.plain(p.value) for p in pending]

    def report():
      jax.debug.callback(send, bad, self.coordinates, self.counters, *values)

    lax.cond(anyone & ~self.found, report, lambda: None)
    self.found = self.found | anyone

  def _bad(self, pending: list[Pending]) -> Any:
    """Compares the pending values, each along its axes."""
    if self.plan.rtol is not None:
      return jnp.stack([p.digest for p in pending])
    groups: dict[tuple, list[int]] = {}
    for n, p in enumerate(pending):
      groups.setdefault(p.site.axes, []).append(n)
    parts, order = list[Any](), list[int]()
    for axes, members in groups.items():
      found = jnp.stack([pending[n].digest for n in members])
      if parts:  # one collective after the other, on each device alike
        found, parts[-1] = lax.optimization_barrier((found, parts[-1]))
      parts.append(digests.differ(found, axes))
      order += members
    # By slices: 0.6.1 and 0.6.2 refuse a gather beside an Explicit axis.
    whole = jnp.concatenate(parts)
    return whole if len(parts) == 1 else jnp.concatenate([
        lax.slice_in_dim(whole, n, n + 1)
        for n in sorted(range(len(order)), key=order.__getitem__)])

  def on_any_device(self, flag: Any) -> Any:
    """True on all devices that run it if it is on one."""
    if not self.axes:
      return flag
    return lax.pmax(flag.astype(jnp.int32), self.ordered(self.axes)) > 0

  def least(self, number: Any, axes: frozenset) -> Any:
    """The least of an integer along axes, of those that don't diverge here."""
    order = self.ordered(axes & self.axes)
    return lax.pmin(number, order) if order else number

  def rejoin(self, found: Any, diverging: frozenset) -> None:
    """Goes on after one within, where devices diverged."""
    self.found = found
    if diverging & self.axes:
      self.found = self.on_any_device(found)
