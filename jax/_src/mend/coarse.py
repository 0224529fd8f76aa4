# SPDX-License-Identifier: Apache-2.0
"""Coarse inference of the axes along which values may differ between devices.

It goes forward through a jaxpr with a set of mesh axes for each value, by what
operations do:

* a result may differ along what the operands do, less the axes that a gather or
  reduction over one group of devices names, and with those that it names of a
  device's own (``axis_index``). A cast adds nothing;
* a ref's content may differ along whatever is written to it, and where;
* what a branch or loop changes may differ along its predicate. Through these,
  and through calls, axes go as any facts do (``abstract``).

It has nothing of the dataflow that types programs (``varying.flow``,
``replication.rules.flow``): so it verifies what those find, and it stands in
for types where there are none (``sanitizer``). A ``Setting``, the domain, tells
where it is asked: the manual axes; whether types hold axes; and, in ``opaque``,
what is taken of an equation that no rule knows, that it gives what its type
says, or that it can be anything.

Where types hold axes (``typed``), the inference gives what they must say: what
``all_gather`` returns varies by its type. It goes on at the wider axes that it
is given, with what an equation's type has beyond what its operands ask for.
Where they don't, it gives what values are.

Limits: what a kernel or reducer does within isn't looked at.

Cost: a jaxpr is walked once, a loop's body once for each round of its fixpoint.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
import dataclasses
from typing import Any

from jax._src import core
from jax._src.mend import abstract
from jax._src.mend.abstract import Found
from jax._src.mend import anatomy
from jax._src.mend import foreign
from jax._src.mend import jaxprs
from jax._src.mend import manual_axes
from jax._src.mend import manual_maps
from jax._src.mend.manual_axes import Axes, NO_AXES


@dataclasses.dataclass(frozen=True)
class Setting(abstract.Domain[Axes]):
  """The place at which axes are inferred, and what is believed there.

  Attributes:
    manual: the manual axes.
    opaque: is asked first, with an equation, the axes of its operands, and the
      setting; None if rules are to tell.
    typed: whether types hold axes.
    single: the manual axes of one device, along which no predicate parts any.
  """
  manual: Axes
  opaque: Callable[[core.JaxprEqn, Sequence[Axes], Setting], Found | None]
  typed: bool = False
  single: Axes = NO_AXES

  def declared(self, v: Any) -> Axes:
    """The axes in a variable's type; none if types have none."""
    return manual_axes.varying(v.aval) if self.typed else NO_AXES

  free = declared

  def join(self, facts: Iterable[Axes]) -> Axes:
    return union(facts)

  def chosen(self, facts: Iterable[Axes], predicate: Axes) -> Axes:
    return union(facts) | predicate - self.single

  def inside(self, jaxpr: core.Jaxpr, ins: Sequence[Axes]) -> Found:
    return of_jaxpr(jaxpr, ins, self)

  def equation(self, eqn: core.JaxprEqn, ins: Sequence[Axes]) -> Found:
    """The axes, with what types have that the operands didn't ask for."""
    found = of_equation(eqn, ins, self)
    if not self.typed:
      return found
    needed = of_equation(eqn, list(map(self.declared, eqn.invars)), self)
    return found._replace(outs=[
        out | self.declared(v) - own
        for v, out, own in zip(eqn.outvars, found.outs, needed.outs)])

  def step(self, eqn: core.JaxprEqn, ins: Sequence[Axes]) -> Found:
    return _of_operation(eqn, list(ins), self)


def union(sets) -> Axes:
  return NO_AXES.union(*sets)


def names_in(eqn: Any) -> Axes:
  """The axes that a collective names; of an array, if it is none."""
  found = eqn.params.get('axes', eqn.params.get('axis_name', ()))
  return frozenset(found if isinstance(found, (tuple, list, set, frozenset))
                   else (found,))


def name_of(primitive: core.Primitive) -> str:
  """The name that rules have for a primitive; none for another library's."""
  return foreign.name_of(primitive).removesuffix('_p').removesuffix('_start')


# What gives each device what is its own.
_OWN = {'axis_index', 'ppermute', 'all_to_all', 'ragged_all_to_all',
        'reduce_scatter', 'unreduced_reduce_scatter', 'psend', 'precv',
        'pgather'}
# What runs code that isn't JAX's, or holds jaxprs in a way of its own.
_OUTSIDE = ('io_callback', 'debug_callback', 'debug_print', 'ffi_call',
            'pallas_call', 'run_state', 'for', 'infeed')
_REDUCERS = ('reduce', 'scatter', 'select_and_scatter')
# The classes of JAX's own operations that only compute: what they hold is their
# types, sizes, names and flags. The modules that define them enter them.
computing: set[type] = set()


def held(eqn: core.JaxprEqn) -> list[core.Jaxpr]:
  """The jaxprs in an equation's parameters, but a kernel's or a reducer's."""
  if name_of(eqn.primitive).startswith((*_REDUCERS, 'pallas_call')):
    return []
  found = list(jaxprs.in_params(eqn.params))
  traced = getattr(_operation_of(eqn), 'traced', None)
  return found + [j for j in jaxprs.within(traced) if j not in found]


def of_call(eqn: core.JaxprEqn, ins: Sequence[Axes], setting: Setting
            ) -> Found | None:
  """The axes of a call of one jaxpr, whatever primitive calls it.

  Returns:
    What the first jaxpr in the parameters, or that of a traced operation, makes
    of all operands; None if it takes or gives another number of values.
  """
  operation = _operation_of(eqn)
  found = held(eqn)[:1] if operation is None else list(
      jaxprs.within(getattr(operation, 'traced', None)))
  if found and (len(found[0].invars), len(found[0].outvars)) == (
      len(eqn.invars), len(eqn.outvars)):
    return of_jaxpr(found[0], ins, setting)
  return None


def _operation_of(eqn: core.JaxprEqn) -> Any:
  """The operation that an equation applies (hijax), if it is one of these."""
  if name_of(eqn.primitive) != 'call_hi_primitive':
    return None
  operation, = eqn.params.values()  # the parameter's name has changed
  return operation


def has_rule(eqn: core.JaxprEqn) -> bool:
  """True if a rule tells what an equation gives, or an operation itself."""
  name = name_of(eqn.primitive)
  return (name in _RULES or name in anatomy.REDUCTIONS.rows
          or abstract.follows(eqn) or anatomy.is_cast(eqn))


def is_opaque(eqn: core.JaxprEqn) -> bool:
  """True if nothing is known of what an equation gives on each device."""
  name = name_of(eqn.primitive)
  if has_rule(eqn) and name != 'call_hi_primitive':
    return False
  if name.startswith(_OUTSIDE):
    return True
  if name == 'call_hi_primitive':  # JAX's own only compute
    return not type(_operation_of(eqn)).__module__.startswith('jax.')
  if any(hasattr(v.aval, 'inner_aval') for v in (*eqn.invars, *eqn.outvars)):
    return True
  return any(_by_device(e) for j in held(eqn) for e in j.eqns)


def _by_device(eqn: core.JaxprEqn) -> bool:
  """True if an equation, or one within, isn't a function of its operands."""
  name = name_of(eqn.primitive)
  return (is_opaque(eqn) or name in _OWN or name in anatomy.REDUCTIONS.rows
          or any(_by_device(e) for j in jaxprs.in_params(eqn.params)
                 for e in j.eqns))


def believing(eqn: core.JaxprEqn, ins: Sequence[Axes], setting: Setting
              ) -> Found | None:
  """Believes, as ``Setting.opaque``, what an opaque equation says it gives."""
  del ins, setting
  # 0.5.3's ``tie`` gives a value the type of another one.
  return none_of(eqn) if is_opaque(eqn) or name_of(
      eqn.primitive) == 'tie' else None


def none_of(eqn: core.JaxprEqn) -> Found:
  """Nothing that an equation's results must differ along."""
  return Found([NO_AXES] * len(eqn.outvars))


def of_equation(eqn: core.JaxprEqn, ins: Sequence[Axes], setting: Setting
                ) -> Found:
  """The axes along which an equation's results and writes may differ.

  Args:
    eqn: the equation.
    ins: what its operands may differ along.
    setting: where it stands.
  """
  told = setting.opaque(eqn, ins, setting)
  return abstract.of_equation(setting, eqn, ins) if told is None else told


def _of_operation(eqn: core.JaxprEqn, ins: list[Axes], setting: Setting
                  ) -> Found:
  """The axes of an equation that doesn't call, choose or loop."""
  name = name_of(eqn.primitive)
  if name in _RULES:
    return _RULES[name](eqn, ins, setting)
  if anatomy.is_cast(eqn) or anatomy.COPIES[eqn.primitive]:
    return Found(ins)
  axes = [union(ins)] * len(eqn.outvars)
  if name in _OWN:
    return Found([a | names_in(eqn) & setting.manual for a in axes])
  if _is_reduced(eqn, name, setting):
    return Found(_reduced(eqn, ins))
  written = jaxprs.written(eqn).union({0} if name in _WRITES else ())
  return Found(axes, dict.fromkeys(written, union(ins)))


_WRITES = {'swap', 'addupdate'}


def _is_reduced(eqn: core.JaxprEqn, name: str, setting: Setting) -> bool:
  """True if all devices have the same results, and types say so, if they do."""
  row = anatomy.REDUCTIONS.rows.get(name)
  if setting.typed:
    return row is not None and row.types != anatomy.VARYING
  return row is not None or name == 'pbroadcast'


def _each(eqn: Any, ins: Sequence[Axes]) -> list[Axes]:
  """The axes of results that are the operands, or made of all of them."""
  count = len(eqn.outvars)
  return list(ins) if len(ins) == count else [union(ins)] * count


def _reduced(eqn: Any, ins: Sequence[Axes]) -> list[Axes]:
  """The axes of a reduction's results, equal within its one group."""
  groups = eqn.params.get('axis_index_groups')
  less = NO_AXES if groups and len(groups) > 1 else names_in(eqn)
  return [a - less for a in _each(eqn, ins)]


def of_jaxpr(jaxpr: Any, ins: Sequence[Axes], setting: Setting) -> Found:
  """The axes along which a jaxpr's results, and its writes, may differ.

  Args:
    jaxpr: an open or a closed one.
    ins: what its inputs may differ along.
    setting: where it stands.

  Returns:
    The axes. Of a jaxpr with types at the axes that it was traced at, what
    these say: whoever holds it has its equations looked at.
  """
  jaxpr = jaxprs.open_jaxpr(jaxpr)
  declared, ins = setting.declared, list(ins)
  if setting.typed and ins == list(map(declared, jaxpr.invars)):
    return Found(list(map(declared, jaxpr.outvars)),
                 {n: ins[n] for n in jaxprs.written(jaxpr)})
  return abstract.outputs(setting, jaxpr, ins)


def at_entry(parts: manual_maps.ManualMap, ins: Sequence[Axes],
             axes: Axes) -> list[Axes]:
  """The axes of a shard_map's arguments inside of it."""
  return [a | manual_maps.named(s) & axes for a, s in zip(ins, parts.in_specs)]


def within(eqn: core.JaxprEqn, setting: Setting) -> Setting:
  """The setting inside of a shard_map that stands in another."""
  parts = manual_maps.of(eqn)
  sizes, typed = parts.mesh.shape, setting.typed and parts.checked
  own = frozenset(a for a in parts.manual - setting.manual
                  if typed or sizes[a] > 1)
  return dataclasses.replace(
      setting, manual=setting.manual | own, typed=typed,
      single=setting.single.union(a for a in own if sizes[a] == 1))


def _shard_map(eqn: core.JaxprEqn, ins: list[Axes], setting: Setting) -> Found:
  """A shard_map in another: what varies outside does so inside, too."""
  parts, inside = manual_maps.of(eqn), within(eqn, setting)
  # Up to 0.5.3 an inner one names the outer one's axes as well.
  own = frozenset(parts.manual) - setting.manual
  jaxpr = jaxprs.open_jaxpr(eqn.params['jaxpr'])
  ins = at_entry(parts, ins, inside.manual & own)
  found = of_jaxpr(jaxpr, [a | inside.declared(v)
                           for v, a in zip(jaxpr.invars, ins)], inside)
  return Found([a - own for a in found.outs],
               {n: a - own for n, a in found.writes.items()})


def _agreed(eqn: core.JaxprEqn, ins: list[Axes], setting: Setting) -> Found:
  """A predicate, along axes along which it isn't known to agree."""
  del setting
  return Found([ins[0].difference(eqn.params['along'])])


def _put(eqn: core.JaxprEqn, ins: list[Axes], setting: Setting) -> Found:
  del setting
  return Found(_each(eqn, ins))


def _operation(eqn: core.JaxprEqn, ins: list[Axes], setting: Setting) -> Found:
  """A traced function gives what it makes; types that others say are believed.
  """
  found = of_call(eqn, ins, setting)
  if found is not None:
    return found
  if setting.typed and type(_operation_of(eqn)) not in computing:
    return none_of(eqn)
  return Found([union(ins)] * len(eqn.outvars))


_RULES: dict[str, Callable[[core.JaxprEqn, list[Axes], Setting], Found]] = {
    'shard_map': _shard_map, 'agreed': _agreed, 'device_put': _put,
    'call_hi_primitive': _operation}
