# SPDX-License-Identifier: Apache-2.0
"""Rewrites of psum, pmin and pmax: positional axes, and groups.

``vmap`` with an axis name turns a reduction over its axis into one over an
array axis, given as an integer, which has no place in a type: it is done
first, as an ordinary reduction.

Within ``axis_index_groups`` the result is the same in each group only, and so
varies along the axis. The transpose of such a psum is a psum over the same
groups.

A cotangent that is a symbolic zero stays one, in the transposes of the two
primitives that the rewrite inserts.
"""
from __future__ import annotations

import functools

from jax._src.interpreters import ad
from jax._src.lax import lax
from jax._src.lax import parallel
from jax._src.mend import pages
from jax._src.replication.rules import collectives
from jax._src.replication.rules import divergence
from jax._src.replication.rules import type_rules
from jax.experimental import shard_map as sm


def _of_mesh(mesh, axes) -> bool:
  return all(map(mesh.axis_names.__contains__, axes))


def _rewrite(prim, positional_reduce, named_prim, mesh, in_rep, *args, axes,
             axis_index_groups):
  axes = collectives.names(axes)
  if axis_index_groups is None and _of_mesh(mesh, axes):
    made = set(axes)
    args = [type_rules.promote(mesh, x, r, r - made)
          for x, r in zip(args, in_rep)]
    outs = named_prim.bind(*args, axes=axes, axis_index_groups=None)
    return outs, [r | made for r in in_rep]
  positional = tuple(a for a in axes if isinstance(a, int))
  named = tuple(a for a in axes if not isinstance(a, int))
  if positional:
    args = [positional_reduce(x, positional) for x in args]
  if not named:
    return args, list(in_rep)
  outer = tuple(a for a in named if a not in mesh.axis_names)
  if outer:  # axes of an outer shard_map, which rewrites this in its turn
    if axis_index_groups is not None and len(outer) < len(named):
      raise NotImplementedError(
          f'{prim}: axis_index_groups over axes of two shard_maps, {named}' +
          pages.see('replication.md#a-shard_map-within-another'))
    args = prim.bind(*args, axes=outer, axis_index_groups=axis_index_groups)
    named = tuple(a for a in named if a in mesh.axis_names)
    if not named:
      return args, list(in_rep)
  args = [type_rules.promote(mesh, x, r, r - set(named))
          for x, r in zip(args, in_rep)]
  grouped = axis_index_groups is not None
  outs = (prim if grouped else named_prim).bind(
      *args, axes=named, axis_index_groups=axis_index_groups)
  return outs, [r - set(named) if grouped else r | set(named) for r in in_rep]


for _p, _reduce, _named in (
    (parallel.psum_p, lax.reduce_sum, sm.psum2_p),
    (parallel.pmin_p, lax.reduce_min, parallel.pmin_p),
    (parallel.pmax_p, lax.reduce_max, parallel.pmax_p)):
  sm._rewrite_rules[_p] = functools.partial(_rewrite, _p, _reduce, _named)
  divergence.guard(_p, 'axes')
for _p in (parallel.psum_p, parallel.pmin_p, parallel.pmax_p):
  sm._check_rules[_p] = collectives.check_reduction(_p)


def _transpose(transposed, cts, /, *args, **params):
  del args
  zeros = [isinstance(ct, ad.Zero) for ct in cts]
  rest = [ct for ct, zero in zip(cts, zeros) if not zero]
  outs = iter(transposed.bind(*rest, **params) if rest else ())
  return [ct if zero else next(outs) for ct, zero in zip(cts, zeros)]


for _p, _transposed in ((sm.psum2_p, sm.pbroadcast_p),
                        (sm.pbroadcast_p, sm.psum2_p)):
  ad.primitive_transposes[_p] = functools.partial(_transpose, _transposed)
