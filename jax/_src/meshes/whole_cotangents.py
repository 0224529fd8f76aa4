# SPDX-License-Identifier: Apache-2.0
"""Cotangents of what a product takes over no mesh, such as weights (jax#31798).

A gradient by weights sums over the batch. If that is spread along an Explicit
axis, a product doesn't know where its result lies, and asks for
``out_sharding``, which a derivative can't give. The transposed product gives
the spec that the weights have. Weights over no mesh have none.

What is over no mesh is whole on each device. Hence its cotangent is whole over
the mesh of the product's, as under ``jax.set_mesh`` that of a matrix product.

Limits: the gradient by the kernel of a grouped convolution, and of images that
are spread along another dimension than the batch, stays refused. There XLA sums
over the mesh's other axes, too, and the value is a multiple of the right one.

Cost: nothing but for a product whose transpose is refused, which is made anew.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
import operator
from typing import Any

from jax._src import core
from jax._src.mend import traces
from jax._src.named_sharding import NamedSharding
from jax._src.partition_spec import PartitionSpec


def of_no_mesh(rule: Callable[..., Any]) -> Callable[..., Any]:
  """Places the cotangent of an operand over no mesh, if that was refused.

  Args:
    rule: a transpose rule of a bilinear primitive, of a cotangent and the
      operands, or None.
  """
  if rule is None:
    return rule

  @functools.wraps(rule)
  def transposed(cotangent, x, y, /, **params):
    try:
      return rule(cotangent, x, y, **params)
    except core.ShardingTypeError:
      placed = [_placed(v, traces.typeof(cotangent)) for v in (x, y)]
      if all(map(operator.is_, placed, (x, y))) or not _is_summed_right(
          traces.typeof(cotangent), params):
        raise
    return rule(cotangent, *placed, **params)
  return transposed


def _is_summed_right(cotangent: Any, params: dict[str, Any]) -> bool:
  """False of convolutions that XLA sums over more axes than the batch's."""
  if 'batch_group_count' not in params:
    return True
  batch, *others = params['dimension_numbers'].out_spec
  return (params['batch_group_count'] == params['feature_group_count'] == 1
          and all(cotangent.sharding.spec[d] is None for d in others))


def _placed(x: Any, cotangent: Any) -> Any:
  """The operand to be found; over no mesh, it is whole over the cotangent's."""
  from jax._src.interpreters import ad  # imports this
  aval, mesh = getattr(x, 'aval', None), cotangent.sharding.mesh
  if (isinstance(x, core.Tracer) or aval is None or mesh.empty
      or not aval.sharding.mesh.empty):
    return x
  whole = PartitionSpec(*[None] * aval.ndim)
  return ad.UndefinedPrimal(aval.update(sharding=NamedSharding(mesh, whole)))
