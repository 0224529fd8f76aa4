# SPDX-License-Identifier: Apache-2.0
"""The axes that an equation's results must vary over, by coarse rules.

``verify`` holds types against these. They know of a primitive only what it
holds, passes on or reduces over devices; all others' results vary at least
along what the operands do.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax._src import core
from jax._src.mend import anatomy
from jax._src.mend import coarse
from jax._src import mesh as mesh_lib
from jax._src.varying import sources
from jax._src.varying import types as vt
from jax._src.varying.types import Axes, NO_AXES

# What must vary: each result, and operands that are refs, by position.
Needs = tuple[list[Axes], dict[int, Axes]]
# By the primitive's name: whether an equation of such parameters says itself
# what varies. The modules that the package lists fill it.
believed: dict[str, Callable[[dict[str, Any]], bool]] = {}


def axes_of(v) -> Axes:
  return vt.varying(v.aval)


def checks(eqn: core.JaxprEqn) -> bool:
  return bool(eqn.params.get('check_vma', eqn.params.get('check_rep')))


def _mesh(eqn: core.JaxprEqn):
  mesh = getattr(eqn.ctx, 'cur_abstract_mesh', None)
  return mesh_lib.get_abstract_mesh() if mesh is None or mesh.empty else mesh


def _parting(eqn: core.JaxprEqn, predicate: Axes) -> Axes:
  """The axes of a predicate along which there is more than one device."""
  return frozenset(a for a in predicate if _mesh(eqn).shape.get(a) != 1)


def needs(eqn: core.JaxprEqn, ins: list[Axes]) -> Needs:
  """The axes that results and refs need if the operands vary over ``ins``."""
  name = vt.name_of(eqn.primitive).removesuffix('_start')
  if name in believed:
    with eqn.ctx.manager:  # they may ask which axes are manual there
      if believed[name](eqn.params):
        return _believe(eqn, ins)
  if name in _RULES:
    return _RULES[name](eqn, ins)
  if not name.startswith(WITHOUT_TYPES) and (inner := sources.jaxprs_of(eqn)):
    return _call(eqn, ins, inner)
  return [coarse.union(ins)] * len(eqn.outvars), {
      n: coarse.union(ins) for n in vt.written(eqn)}


def _made_of(jaxpr: core.Jaxpr, ins: Sequence[Axes]) -> Needs:
  """The axes of a jaxpr's results, and of refs that it writes to.

  Args:
    jaxpr: its own types are looked at elsewhere.
    ins: what is passed to its inputs varies over.

  Returns:
    What its types say if its inputs' are ``ins``. Else that is worked out: the
    result of each equation is what it must be, with what the equation adds of
    itself, which is what its type has and wouldn't have needed.
  """
  traced, ins = list(map(axes_of, jaxpr.invars)), list(ins)
  writes = vt.written(jaxpr)
  if ins == traced:
    return list(map(axes_of, jaxpr.outvars)), {n: ins[n] for n in writes}
  at = dict(zip(jaxpr.invars, ins))
  read = lambda v: (axes_of(v) if type(v) is core.Literal
                    else at.get(v, axes_of(v)))
  grew = True
  while grew:
    grew = False
    for eqn in jaxpr.eqns:
      outs, written = needs(eqn, list(map(read, eqn.invars)))
      needed, _ = needs(eqn, list(map(axes_of, eqn.invars)))
      for v, out, own in zip(eqn.outvars, outs, needed):
        out |= axes_of(v) - own
        at[v] = out | at[v] if vt.is_ref(v.aval) and v in at else out
      for n, axes in written.items():
        v = eqn.invars[n]
        grew |= not axes <= read(v)
        at[v] = axes | read(v)
  return list(map(read, jaxpr.outvars)), {
      n: read(jaxpr.invars[n]) for n in writes}


def _call(eqn, ins, inner) -> Needs:
  """The needs of a call of one jaxpr; of anything else nothing is known.

  What applies another jaxpr than that, or in another way, is believed.
  """
  jaxpr = inner[0]
  if len(jaxpr.invars) != len(ins) or len(jaxpr.outvars) != len(eqn.outvars):
    return _believe(eqn, ins)
  return _made_of(jaxpr, ins)


def _each(eqn, ins) -> Needs:
  return coarse.each(eqn, ins), {}


def _agreed(eqn, ins) -> Needs:
  """The needs of a predicate along axes along which it isn't known to agree."""
  return [ins[0].difference(eqn.params['along'])], {}


def _reduced(eqn, ins) -> Needs:
  """The needs of a reduction: equal results within its one group."""
  return coarse.reduced(eqn, ins), {}


def _axis_index(eqn, ins) -> Needs:
  del ins
  return [coarse.names_in(eqn).intersection(_mesh(eqn).manual_axes)], {}


def _believe(eqn, ins) -> Needs:
  del ins
  return [NO_AXES] * len(eqn.outvars), {}


def _cond(eqn, ins) -> Needs:
  index = _parting(eqn, ins[0])
  branches = anatomy.branches(eqn.params)
  each = [_made_of(b, ins[1:]) for b in branches]
  outs = [coarse.union(o) for o in zip(*(outs for outs, _ in each))]
  for n, vs in enumerate(zip(*(b.outvars for b in branches))):
    if not sources.one_value(vs, branches):
      outs[n] |= index
  writes: dict[int, Axes] = {}
  for _, written in each:
    for n, axes in written.items():
      writes[n + 1] = writes.get(n + 1, NO_AXES) | axes | index
  return outs, writes


def _loop(loop: anatomy.Loop, ins: Sequence[Axes], predicate=None):
  """The fixpoint of a loop's carries: the inputs, what is made, and written."""
  body, writes = loop.body, {}
  arrays = [isinstance(body.invars[n].aval, core.ShapedArray)
            for n in loop.own]

  def results(ins):
    nonlocal writes
    outs, writes = _made_of(body, ins)
    return [out if is_array else NO_AXES for out, is_array in zip(
        outs, arrays)] + outs[loop.carries:]

  def changes(n):
    return arrays[n] and sources.source(body.outvars[n], body) != loop.own[n]

  ins, outs, parting = coarse.solved(loop, ins, results, predicate, changes)
  return ins, outs, {n: axes | parting for n, axes in writes.items()}


def _while(eqn, ins) -> Needs:
  loop = anatomy.while_loop(eqn.params)
  tests = loop.tests

  def predicate(carry):
    (out,), _ = _made_of(loop.predicate, ins[:tests] + carry)
    return _parting(eqn, out)

  ends, _, writes = _loop(loop, ins[tests:], predicate)
  return ends[loop.consts:], {n + tests: axes for n, axes in writes.items()}


def _scan(eqn, ins) -> Needs:
  loop = anatomy.scan(eqn.params)
  ends, outs, writes = _loop(loop, ins)
  return loop.split(ends)[2] + outs[loop.carries:], writes


def _solve(eqn, ins) -> Needs:
  """The solution is what the solver makes of the right-hand side."""
  solver = anatomy.called(eqn)
  return _made_of(vt.open_jaxpr(solver.jaxpr),
                  [ins[n] for n in solver.operands])[0], {}


def _shard_map(eqn, ins) -> Needs:
  """One inside of another: what varies outside does so inside, too."""
  if not checks(eqn):
    return _believe(eqn, ins)
  outside = frozenset(_mesh(eqn).manual_axes)
  jaxpr = vt.open_jaxpr(eqn.params['jaxpr'])
  outs, writes = _made_of(
      jaxpr, [axes_of(v) | (a & outside) for v, a in zip(jaxpr.invars, ins)])
  keep = lambda a: a & outside
  return list(map(keep, outs)), {n: keep(a) for n, a in writes.items()}


def _write(eqn, ins) -> Needs:
  return [coarse.union(ins)] * len(eqn.outvars), {0: coarse.union(ins)}


def _operation(eqn, ins) -> Needs:
  """The needs of a traced function; others that define types are believed."""
  if inner := sources.jaxprs_of(eqn):
    return _call(eqn, ins, inner)
  if type(eqn.params['_prim']) in computing:
    return [coarse.union(ins)] * len(eqn.outvars), {}
  return _believe(eqn, ins)


# The classes of JAX's own operations that only compute: what they hold is their
# types, sizes, names and flags. The modules that define them enter them.
computing: set[type] = set()
# The jaxprs of a reducer or a kernel have no varying axes in their types.
WITHOUT_TYPES = ('reduce', 'scatter', 'select_and_scatter', 'pallas_call')
_RULES: dict[str, Callable[[core.JaxprEqn, list[Axes]], Needs]] = {
    'agreed': _agreed,
    **dict.fromkeys(
        ('device_put', *anatomy.named(anatomy.COPIES),
         *anatomy.named(anatomy.CASTS, anatomy.VARYING)), _each),
    **dict.fromkeys(
        (*(name for name, row in anatomy.REDUCTIONS.rows.items()
           if row.types != anatomy.VARYING),
         *anatomy.named(anatomy.CASTS, anatomy.UNREDUCED)), _reduced),
    **dict.fromkeys(('swap', 'addupdate'), _write),
    'axis_index': _axis_index, 'cond': _cond, 'while': _while, 'scan': _scan,
    'custom_linear_solve': _solve, 'shard_map': _shard_map,
    'call_hi_primitive': _operation,
    # Their linear part is typed by the rule of the derivative.
    'custom_lin': _believe, 'call_hi_primitive_linearized': _believe,
}
sources.not_calls.update(_RULES)
