# SPDX-License-Identifier: Apache-2.0
"""checkify's errors, into a shard_map, out of it and on.

Each device has an error of its own, so that what leaves a ``shard_map`` is a
mapped error: predicate, code and payload of an effect have a leading dimension
over the devices, in the order of the manual axes. Upstream makes one of them,
and no other check can follow: it joins scalars only. Here,

* the next ``shard_map`` over as many devices gives each its own error back, one
  over another number gives all of them the first device's that failed;
* a later check outside of it joins the mapped error at every index (a check
  that fails before a ``shard_map`` is reported at every index too);
* effects of different mapped shapes are aligned where they are read, and told
  apart by the shapes and dtypes in their messages alone.

The body is interpreted inside ``shard_map``'s own function, so that types,
meshes, captured constants and partly manual meshes are as it has them.

Limits: an error that becomes mapped in the body of a loop, or in one branch of
two, changes the type that it is carried with; upstream's refusal stays.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import math
from typing import Any

from jax._src import array
from jax._src import core
from jax._src import tree_util
from jax._src.lax import lax
from jax._src.named_sharding import NamedSharding
from jax._src.numpy import lax_numpy as jnp
from jax._src.partition_spec import PartitionSpec as P
import numpy as np


def _each(error, change: Callable[..., Any]):
  """The error, with ``change(x, mapped shape)`` of each part of each effect."""
  shapes = {k: np.shape(p) for k, p in error._pred.items()}

  def changed(parts):
    return {k: tree_util.tree_map(lambda x: change(x, shapes[k]), v)
            for k, v in parts.items()}

  return error._replace(_pred=changed(error._pred), _code=changed(error._code),
                        _payload=changed(error._payload))


def _spread(x, old: tuple[int, ...], new: tuple[int, ...]):
  """``x`` of shape ``old + rest``, repeated along the rest of ``new``."""
  if old == new:
    return x
  rest = np.shape(x)[len(old):]
  x = jnp.reshape(x, old + (1,) * (len(new) - len(old)) + rest)
  return jnp.broadcast_to(x, new + rest)


def _whole(error):
  """The error, of which each device holds all.

  Over Explicit axes its parts are spread along the mapped dimension, and to
  read an index there is refused.
  """
  def whole(x, _):
    if not isinstance(x, core.Tracer) and not isinstance(x, array.ArrayImpl):
      return x
    type_ = getattr(core.typeof(x), 'sharding', None)
    if type_ is None or not any(type_.spec):
      return x
    from jax._src import pjit
    here = type_ if isinstance(x, core.Tracer) else x.sharding
    return pjit.reshard(x, NamedSharding(here.mesh, P()))

  return _each(error, whole)


def plain(value) :
  """Shape and dtype of a value in a message, by which effects are told apart.

  What varies, and the mesh, would make a check inside a ``shard_map`` another
  effect than the same one outside, until they leave it and become one: then one
  of the two is lost.
  """
  return core.ShapeDtypeStruct(value.shape, value.dtype)


def aligned(error):
  """The error, with all effects of the same mapped shape.

  Args:
    error: a ``checkify.Error``, the mapped shapes of whose effects begin alike.

  Returns:
    The error, whole on each device; where an effect was mapped over fewer
    dimensions, it says the same at each index of the others.
  """
  error = _whole(error)
  shapes = {np.shape(p) for p in error._pred.values()}
  if len(shapes) < 2:
    return error
  new = max(shapes, key=len)
  return _each(error, lambda x, old: _spread(x, old, new))


def update_mapped(error, pred, code, metadata, payload, effect_type):
  """``checkify.update_error``, of an error that is mapped.

  Args:
    error: the error, whose parts of ``effect_type`` are mapped.
    pred: a scalar, whether the check has failed.
    code: its code.
    metadata: what the code stands for.
    payload: the values in its message.
    effect_type: the effect that it belongs to.

  Returns:
    The error; an index that had failed keeps what it had.
  """
  failed = error._pred[effect_type]

  def first(old, new):
    mask = lax.expand_dims(failed, range(failed.ndim, np.ndim(old)))
    return jnp.where(mask, old, new)

  code = first(error._code[effect_type], code)
  payload = tree_util.tree_map(first, error._payload[effect_type], payload)
  return error._update(effect_type, failed | pred, code, metadata, payload)


def first_failure(error):
  """Reduces a mapped error to that of the first failing index."""
  error = _whole(error)

  def first(x, shape, pred):
    if not shape:
      return x
    x = jnp.reshape(x, (math.prod(shape), *np.shape(x)[len(shape):]))
    return x[jnp.argmax(jnp.ravel(pred))]

  def changed(parts):
    return {k: tree_util.tree_map(
        lambda x: first(x, np.shape(error._pred[k]), error._pred[k]), v)
            for k, v in parts.items()}

  return error._replace(_pred=changed(error._pred), _code=changed(error._code),
                        _payload=changed(error._payload))


def check_shard_map(interpret: Callable, error, vals_in: Sequence[Any],
                    in_specs: Sequence[Any], out_specs: Sequence[Any],
                    shard_map: Callable, **params):
  """Interprets the body of a ``shard_map``, each device with its own error.

  Args:
    interpret: from the error's tree, its leaves and the body's arguments, gives
      the body's error and outputs.
    error: the error so far.
    vals_in: the operands.
    in_specs: their specs.
    out_specs: those of the outputs.
    shard_map: the public function.
    **params: the primitive's other parameters.

  Returns:
    The mapped error, and the outputs.
  """
  mesh = params['mesh']
  if 'auto' in params:  # 0.6.0
    manual = frozenset(mesh.axis_names) - params['auto']
    options = dict(auto=params['auto'], check_rep=params['check_rep'])
    in_specs, out_specs = (
        tuple(map(_spec, in_specs)), tuple(map(_spec, out_specs)))
  else:
    manual = params.get('newly_manual_axes', params.get('manual_axes'))
    options = dict(axis_names=manual, check_vma=params['check_vma'])
  axes = tuple(a for a in mesh.axis_names if a in manual)
  number = math.prod(mesh.shape[a] for a in axes)
  if any(np.shape(p)[:1] not in ((), (number,)) for p in error._pred.values()):
    error = first_failure(error)
  errors, tree = tree_util.tree_flatten(error)
  apart = tree_util.tree_leaves(_each(error, lambda _, shape: bool(shape)))
  trees = []

  def body(errors, args):
    errors = [jnp.squeeze(e, 0) if a else e for e, a in zip(errors, apart)]
    new, outs = interpret(tree, *errors, *args)
    leaves, out_tree = tree_util.tree_flatten(new)
    trees.append(out_tree)
    return [jnp.expand_dims(e, 0) for e in leaves], list(outs)

  checked = shard_map(
      body, mesh=mesh, in_specs=([P(axes) if a else P() for a in apart],
                                 list(in_specs)),
      out_specs=(P(axes), list(out_specs)), **options)
  errors, outs = checked(errors, list(vals_in))
  return tree_util.tree_unflatten(trees[-1], errors), outs


def _spec(names: dict) -> P:
  """The spec of a dict from dimensions to axes, as 0.6.0 stores it."""
  return P(*(names.get(n) for n in range(max(names, default=-1) + 1)))
