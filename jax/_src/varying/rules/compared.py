# SPDX-License-Identifier: Apache-2.0
"""Predicates that are compared across devices, as a program runs.

That a predicate agrees, so that a collective meets, is worked out from what it
is computed by (``agreement``, ``requirements``). With the option
``jax_check_agreement`` it is compared as well: a branch's index or a loop's
predicate, along the axes over which something in there communicates; and one
that a ``shard_map``'s own function computes, along those along which its type
was narrowed. A difference is an error with the least and the largest value, and
the line.

Limits: what is narrowed in another function is left to
``jax.debug.check_replication``, as a comparison is itself a collective, which
not all devices may reach there. Where axes of the mesh aren't manual nothing is
compared: a callback can't be lowered.

Cost: a minimum, a maximum and a call of Python on each device, for each such
predicate and trip; nothing while the option is off.
"""
from __future__ import annotations

from jax._src import config
from jax._src import core
from jax._src.interpreters import batching
from jax._src.interpreters import mlir
from jax._src.mend import pages
from jax._src.mend import releases
from jax._src import sharding_impls
import numpy as np

compared_p = core.Primitive('compared')
compared_p.def_impl(lambda predicate, /, **_: predicate)
compared_p.def_abstract_eval(lambda predicate, /, **_: predicate)


def _compare(predicate, /, *, along, where, **_):
  from jax import ShapeDtypeStruct  # imports what binds predicates
  from jax._src import callback
  from jax._src.lax import lax, parallel
  number = lax.convert_element_type(predicate, np.int32)

  def check(value, least, most):
    if np.any(least != most):
      raise ValueError(
          f'jax_check_agreement: the predicate at {where} was taken to be the '
          f'same on all devices along {along}; got {least} on one and {most} '
          'on another. This is a defect of Mend: please report it. '
          'jax.lax.pmax(predicate, axis) makes them the same.' +
          pages.see('varying_errors.md#predicates-that-agree'))
    return value

  return callback.pure_callback(
      check, ShapeDtypeStruct(predicate.shape, predicate.dtype),
      predicate, parallel.pmin(number, along), parallel.pmax(number, along))


def _lower(ctx, predicate, /, **params):
  context = ctx.module_context.axis_context
  if isinstance(context, sharding_impls.SPMDAxisContext) and (
      context.manual_axes != frozenset(context.mesh.axis_names)):
    return [predicate]
  rule = mlir.lower_fun(lambda x: _compare(x, **params), multiple_results=False)
  # No type of the comparison is the program's.
  with releases.check_option()(False), config.enable_checks(False):
    return rule(ctx, predicate)


def _batch(args, dims, /, **params):
  if not params['by_type']:
    return args[0], dims[0]
  return compared_p.bind(*args, **params), dims[0]


batching.primitive_batchers[compared_p] = _batch
mlir.register_lowering(compared_p, _lower)
MARKS = {'compared': compared_p}
