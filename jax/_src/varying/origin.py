# SPDX-License-Identifier: Apache-2.0
"""Says where a shard_map output that should be replicated became varying.

The check of ``out_specs`` knows that an output varies along an axis that its
spec leaves out, and not why. When it fails, this module walks the traced jaxpr
from that output back along the values that vary over the axis, into loops,
branches and calls, to the nearest place where the axis comes in: an argument
whose in_spec names it, or an operation whose result varies though its operands
don't (``axis_index``, a callback). Where devices diverge at a predicate,
the walk goes through the predicate.

Nothing is computed unless the check fails. Outside of jit there is no jaxpr
then, so the function is traced once more, to get one; if that fails, upstream's
message is left as it is. Limits: one origin is named for each axis, the one
that is the fewest steps away; a place that only casts the value (``pcast``) is
named if there is no other.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jax._src import core
from jax._src import source_info_util
from jax._src import tree_util
from jax._src.mend import pages
from jax._src.partition_spec import PartitionSpec
from jax._src.varying import origin_walk
from jax._src.varying import types as vt

HEADING = 'Where they become varying:'


def describe(origin: origin_walk.Origin, axis, names: list[str]) -> str:
  """The origin in words.

  Args:
    origin: what ``find`` gave.
    axis: the mesh axis.
    names: what to call the inputs of the outermost jaxpr.

  Returns:
    A clause.
  """
  if origin.eqn is None:
    inputs = origin.level.jaxpr.invars
    where = (names[inputs.index(origin.var)] if origin.var in inputs
             else 'a captured value')
    if origin.user is not None:
      where += (', used at '
                f'{source_info_util.summarize(origin.user.source_info)}')
  else:
    where = (f'{_name(origin.eqn)} at '
             f'{source_info_util.summarize(origin.eqn.source_info)}')
  for eqn in reversed(origin.predicates):
    where += (f', through the predicate of the {_name(eqn)} at '
              f'{source_info_util.summarize(eqn.source_info)}')
  return where


_PUBLIC = {'while': 'lax.while_loop', 'cond': 'lax.cond or lax.switch',
           'pvary': 'the cast (pcast, pvary)'}


def _name(eqn: core.JaxprEqn) -> str:
  return _PUBLIC.get(eqn.primitive.name, eqn.primitive.name)


def noting(check, error: type, jaxpr, in_specs) -> Callable:
  """Makes ``check`` put the jaxpr under check into its ``error``."""
  def checked(*args):
    try:
      return check(*args)
    except error as e:
      e.traced = (vt.open_jaxpr(jaxpr), in_specs)
      raise
  return checked


class _Typed(NamedTuple):
  """An output's type, as the check reads it."""
  mat: Any

  @property
  def vma(self):  # its name before 0.10
    return self.mat


def check_eager_types(check, types) -> Callable:
  """``check``, of the outputs' types inside an eager shard_map.

  Upstream passes the types of what is stacked over devices, which can't vary,
  and fails later, in a function of its own.
  """
  def checked(mesh, specs, avals):
    typed = [_Typed(mat) for mat in types]
    is_tree = hasattr(avals, 'update')  # a list or a tuple in 0.9.1
    return check(mesh, specs, avals.update(typed) if is_tree else typed)
  return checked


def explain(error: Exception, fun: Callable, args, out_specs, tree) -> str:
  """An explanation to add to the message of an error about ``out_specs``.

  Args:
    error: the internal error, with what ``noting`` added, if anything.
    fun: the function that ``shard_map`` returned.
    args: what it was called with.
    out_specs: the specs that the user gave.
    tree: the structure of the outputs.

  Returns:
    Text to append, or an empty string.
  """
  try:
    traced: Any = getattr(error, 'traced', None)
    if traced is None:
      return _by_tracing(fun, args)
    jaxpr, in_specs = traced
    return _explanation(jaxpr, in_specs, out_specs, tree)
  except Exception:  # the error that is being explained matters more
    return ''


def _by_tracing(fun, args) -> str:
  from jax._src import api  # imports this module's users
  try:
    api.make_jaxpr(fun)(*args)
  except ValueError as e:
    _, heading, text = str(e).partition(HEADING)
    return f'\n\n{heading}{text}' if heading else ''
  return ''


def _named(spec) -> set:
  out: set = set()
  for names in getattr(spec, 'partitions', spec):
    out.update(names if isinstance(names, tuple) else
               () if names is None else (names,))
  return out


def _explanation(jaxpr: core.Jaxpr, in_specs, out_specs, tree) -> str:
  leaves = list(range(tree.num_leaves))
  outputs = tree_util.tree_unflatten(tree, leaves)
  paths = [tree_util.keystr(path) for path, _ in
           tree_util.tree_flatten_with_path(outputs)[0]]
  specs = tree_util.broadcast_prefix(out_specs, outputs)
  arg_names = getattr(jaxpr.debug_info, 'arg_names', None) or ()
  names = [f'the argument {name}, whose in_spec is {_spec(spec)}' for name, spec
           in zip(arg_names, in_specs)]
  names += ['an argument'] * (len(jaxpr.invars) - len(names))
  lines = []
  for n, (path, spec, v) in enumerate(zip(paths, specs, jaxpr.outvars)):
    if not isinstance(spec, PartitionSpec):
      continue
    for axis in vt.ordered(vt.varying(v.aval) - _named(spec)):
      origin = origin_walk.find(jaxpr, n, axis)
      if origin is not None:
        lines.append(f'* result{path} varies over {axis!r} because of '
                     f'{describe(origin, axis, names)}.')
  if not lines:
    return ''
  return (f'\n\n{HEADING}\n' + '\n'.join(lines) + '\nTo make a value the same '
          'along an axis, reduce it with jax.lax.psum, jax.lax.pmean, '
          'jax.lax.pmax or jax.lax.pmin over that axis. To keep each '
          "device's own, name the axis in out_specs (a scalar x is returned as "
          'x[None]).' +
          pages.see('varying_errors.md#outputs-that-may-differ'))


def _spec(spec) -> str:
  if isinstance(spec, dict):  # 0.6.0's form of a spec: dimension to names
    dims = [spec.get(n) for n in range(max(spec, default=-1) + 1)]
    spec = PartitionSpec(*(d[0] if d and len(d) == 1 else d for d in dims))
  return str(spec)
