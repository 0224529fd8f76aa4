# SPDX-License-Identifier: Apache-2.0
"""A shard_map within another, over axes that the outer one leaves ``auto``.

Each of the two has its own check, of the axes that it makes manual itself: a
value's type in the inner one says nothing of the outer one's axes, along which
the inner function is like any other code of the outer body. So the check and
the rewrite of a ``shard_map`` get a mesh with those axes only (``own``), and a
collective over an axis of the outer one passes through the rewrite of the
inner one to that of the outer one.

Limits: what 0.5.3 cannot run with ``check_rep=False`` either, as an inner
``shard_map`` with an axis of the outer one in ``auto``; and on 0.5.1 and 0.5.2
an inner one without an axis but those that are manual in the outer one: XLA's
partitioner ends the process, with ``check_rep=False`` as well, so that it is
refused (``process_or_refuse``).
"""
from __future__ import annotations

from jax._src import config
from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src import util
from jax._src.mend import axis_types
from jax._src.mend import pages
from jax._src.replication.rules import flow
from jax._src.replication.rules import type_rules
from jax._src.replication.rules import verify
from jax.experimental import shard_map as sm


def own(mesh, auto=frozenset()):
  """Returns `mesh`, or what it is without auto axes and those of outer ones."""
  manual = _manual_outside()
  names = tuple(a for a in mesh.axis_names if a not in auto and a not in manual)
  if len(names) == len(mesh.axis_names):
    return mesh
  return flow.Axes(names, {a: mesh.shape[a] for a in names})


def _manual_outside():
  """The axes that shard_maps outside of what is traced have made manual."""
  context = mesh_lib.get_abstract_mesh()
  return () if context.empty else axis_types.names_of(
      context, axis_types.AxisType.Manual)


def rewrite(fun, mesh, in_names, out_names_thunk, auto):
  """Returns the function of a shard_map with casts where types differ."""
  mesh = own(mesh, auto)
  in_rep = [sm._in_names_to_rep(mesh, n) for n in in_names]
  wanted = lambda: [set(sm._unmentioned(mesh, n)) for n in out_names_thunk()]
  fun, out_rep = sm._efficient_transpose_rewrite_nomatch(fun, mesh, in_rep)
  return sm._match_rep(fun, mesh, out_rep, wanted)


def check(mesh, auto, jaxpr, in_rep):
  """Returns the types of a jaxpr's outputs, by the axes that are its own."""
  mine = own(mesh, auto)
  axes = set(mine.axis_names)
  if mine is not mesh:
    in_rep = [r & axes for r in in_rep]
  out_rep = sm._check_rep(mine, jaxpr, in_rep)
  if config.enable_checks.value:
    verify.verify(mine, jaxpr, in_rep)
  if mine is mesh:
    return out_rep
  others = set(mesh.axis_names) - axes
  return [r if r is None else r | others for r in out_rep]


def rep_error(auto, f, mesh, *args):
  """The text of the error for outputs that are not replicated."""
  return sm._inout_rep_error(f, own(mesh, auto), *args)


def process_shard_map(trace, prim, fun, tracers, **params):
  """Binds a shard_map below the rewriting trace, its function rewritten."""
  vals, in_rep = util.unzip2(map(trace.to_val_rep_pair, tracers))
  fun, out_rep = sm._rewrite_subtrace(fun, trace.tag, trace.mesh, in_rep)
  with core.set_current_trace(trace.parent_trace):
    outs = prim.bind(fun, *vals, **params)
  return [sm.RewriteTracer(trace, r, x) for r, x in zip(out_rep(), outs)]


def process_or_refuse(trace, prim, fun, tracers, /, **params):
  """``process_shard_map`` where XLA divides by the axes that are left, by 0.

  Raises:
    NotImplementedError: no axis is left. XLA takes a scalar, but whoever looks
      at the program, as ``jax.debug.check_replication``, adds arrays to it.
  """
  names = params['mesh'].axis_names
  if set(names) <= {*trace.mesh.axis_names, *_manual_outside()}:
    raise NotImplementedError(
        'jax.experimental.shard_map.shard_map within another: expected a mesh '
        'with an axis that is not manual in an outer one; got the axes '
        f'{names}, all of which are. XLA of this release crashes on an array '
        'that is passed to it. Call the function without the inner shard_map, '
        'leave an axis to `auto` of an outer one, or use jax 0.5.3 or later.'
        + pages.see('replication.md#a-shard_map-within-another'))
  return process_shard_map(trace, prim, fun, tracers, **params)


@flow.register(sm.shard_map_p)
def _shard_map(axes, ins, /, *, jaxpr, **_):
  return flow.call(axes, jaxpr, ins)


sm._check_rules[sm.shard_map_p] = type_rules.check_rule(sm.shard_map_p)


def _of_inner(prim):
  """Lets a primitive that an inner rewrite made pass through an outer one."""
  rule = sm._rewrite_rules[prim]

  def new_rule(mesh, in_rep, /, *args, axes, **params):
    if set(axes).intersection(mesh.axis_names):
      return rule(mesh, in_rep, *args, axes=axes, **params)
    return prim.bind(*args, axes=axes, **params), list(in_rep)
  sm._rewrite_rules[prim] = new_rule


_of_inner(sm.psum2_p)
_of_inner(sm.pbroadcast_p)
