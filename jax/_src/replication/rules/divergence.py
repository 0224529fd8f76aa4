# SPDX-License-Identifier: Apache-2.0
"""Refusal of collectives that the devices would not reach together.

A collective waits for all the devices along its axes. In a ``while_loop``
whose predicate varies along such an axis, or in a branch that an index varying
along it chooses, some devices arrive and others do not, if there are several:
the program hangs, or mixes the values of different iterations. ``shard_map``
refuses it while it traces. Collectives along other axes are fine. (A
``ppermute`` is marked there, as XLA's own waits for all the devices of the mesh
on CPU: see ``permute``.)

``jax_allow_divergent_collectives`` admits them, for a user who knows that a
predicate typed as varying is in fact the same on the devices concerned.

The loops and branches being rewritten form a stack (``diverging``); the rewrite
rules of the collectives look at it. What is traced later, in the backward pass
of a ``custom_vjp``, re-enters the stack that was current when it was met
(``remembered``).
"""
from __future__ import annotations

import contextlib
import functools
import threading
from typing import NamedTuple

from jax._src import core
from jax._src.replication.divergence_option import allow
from jax._src import linear_util as lu
from jax._src import source_info_util
from jax._src.lax import parallel
from jax._src.mend import pages
from jax._src.replication.rules import collectives
from jax._src.replication.rules import permute
from jax._src.replication.rules import reps
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm


class Divergence(NamedTuple):
  """A loop or branch that devices enter or leave at different times."""
  what: str
  axes: frozenset
  where: str


class _State(threading.local):
  divergences: tuple[Divergence, ...] = ()


_state = _State()


@contextlib.contextmanager
def _divergences(divergences):
  before, _state.divergences = _state.divergences, divergences
  try:
    yield
  finally:
    _state.divergences = before


def diverging(what, axes):
  """Context in which the body of `what`, decided along `axes`, is rewritten."""
  if not axes:
    return contextlib.nullcontext()
  where = source_info_util.summarize(source_info_util.current())
  return _divergences(
      (*_state.divergences, Divergence(what, frozenset(axes), where)))


def axes() -> frozenset:
  """Returns the axes along which devices may be elsewhere just now."""
  return frozenset().union(*[r.axes for r in _state.divergences])


def typed(mesh, flows) -> list:
  """Types the results of a loop or branch as varying where devices diverge.

  A result that varies with nothing can have a cotangent all the same, from a
  rule of ``custom_vjp`` inside. Its cast belongs with the value: where it is
  used it would be transposed to a sum that some devices only reach. What is
  handed through untouched keeps its type.

  Args:
    mesh: the mesh of the shard_map.
    flows: those of the results.
  """
  elsewhere, found = axes(), [type_rules.to_rep(mesh, f) for f in flows]
  if not elsewhere:
    return found
  return [r if f.source is not None else reps.less(r, elsewhere)
          for f, r in zip(flows, found)]


def remembered(fun):
  """Returns `fun` to be run, at any time, under the divergences of now."""
  divergences = _state.divergences
  if not divergences:
    return fun

  @functools.wraps(fun)
  def under_divergences(*args, **kwargs):
    with _divergences(divergences):
      return fun(*args, **kwargs)
  return under_divergences


@lu.transformation2
def _under_divergences(f, divergences, *args):
  with _divergences(divergences):
    return f(*args)


def remembered_fun(fun: lu.WrappedFun) -> lu.WrappedFun:
  """`remembered`, for a function with transformations."""
  now = _state.divergences
  return _under_divergences(fun, now) if now else fun


def refuse_divergent(prim, names):
  """Raises if a collective over `names` would be reached by some devices."""
  if allow.value:
    return
  for r in _state.divergences:
    shared = [n for n in names if n in r.axes]
    if shared:
      over, axes = [', '.join(map(repr, a)) for a in (names, shared)]
      where = source_info_util.summarize(source_info_util.current())
      raise ValueError(
          f'shard_map: the collective {prim} over mesh axis {over}, at {where},'
          f' is inside a {r.what}, at {r.where}, whose predicate varies over '
          f'{axes}. Expected all devices along the axis to reach the '
          'collective together; got devices that decide for themselves, so '
          'that it would hang or mix their values. Make the predicate the '
          'same on all of them, for '
          f'instance with jax.lax.pmax(predicate, {shared[0]!r}) or '
          f'jax.lax.psum, or move the collective out of the {r.what}. If the '
          'predicate is known to agree, set jax_allow_divergent_collectives.' +
          pages.see(
              'replication.md#collectives-that-devices-dont-reach-together'))


def mark_permutes(params):
  """Parameters of what runs jaxprs as they are, permutations marked there."""
  if not _state.divergences:
    return params
  return {name: permute.mark(x) for name, x in params.items()}


def refuse_divergent_within(prim, jaxprs):
  """Raises if `jaxprs`, run as they are by `prim`, hold such a collective."""
  if _state.divergences:
    for jaxpr in jaxprs:
      for e in jaxpr.eqns:
        param = _params.get(e.primitive)
        if param is not None:
          refuse_divergent(e.primitive, collectives.names(e.params[param]))
      refuse_divergent_within(prim, core.subjaxprs(jaxpr))


_params = {}  # collective -> the parameter that names its axes


def guard(prim, param):
  """Makes the rewrite rule of a collective refuse divergent devices."""
  _params[prim] = param
  rule = sm._rewrite_rules.get(prim)
  if rule is None:
    return

  def guarded(mesh, in_rep, /, *args, **params):
    if _state.divergences:
      refuse_divergent(prim, collectives.names(params[param]))
      if prim is parallel.ppermute_p:
        names = permute.PartlyReached(collectives.names(params[param]))
        params = {**params, param: names}
    return rule(mesh, in_rep, *args, **params)
  sm._rewrite_rules[prim] = guarded


# ``reductions`` and ``complete`` guard those that they enter rules for.
for _p in (parallel.all_gather_p, parallel.all_to_all_p, parallel.ppermute_p,
           parallel.reduce_scatter_p):
  guard(_p, 'axis_name')
