# SPDX-License-Identifier: Apache-2.0
"""Parts of a shard_map's equation, and shard_maps of other functions.

Its specs are partition specs since 0.6.1; before they are dicts from dimension
to names. The manual axes are those that aren't ``auto`` there, then
``manual_axes``, then ``newly_manual_axes``.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import inspect
from typing import Any, NamedTuple

from jax._src import core
from jax._src.mend import releases
from jax._src.partition_spec import PartitionSpec


class ManualMap(NamedTuple):
  """A shard_map: over what it maps, and how.

  Attributes:
    mesh: the mesh that the equation names.
    in_specs: a partition spec for each operand.
    out_specs: a partition spec for each result.
    checked: whether its check is on.
    manual: the axes that it makes manual; on 0.6.0, in another one, with those
      that the other makes so.
  """
  mesh: Any
  in_specs: tuple
  out_specs: tuple
  checked: bool
  manual: frozenset


def of(eqn: core.JaxprEqn) -> ManualMap:
  """The parts of a shard_map's equation."""
  params = eqn.params
  mesh = params['mesh']
  if 'in_names' in params:
    return ManualMap(
        mesh, tuple(map(_spec, params['in_names'])),
        tuple(map(_spec, params['out_names'])), params['check_rep'],
        frozenset(mesh.axis_names) - params['auto'])
  manual: Any = params.get('newly_manual_axes', params.get('manual_axes'))
  # Before 0.10 one over all axes, in another one, names the other's axes, too.
  return ManualMap(mesh, tuple(params['in_specs']), tuple(params['out_specs']),
                   params['check_vma'],
                   frozenset(manual).difference(mesh.abstract_mesh.manual_axes))


def _spec(names: dict) -> PartitionSpec:
  return PartitionSpec(*(names.get(n) for n in range(max(names, default=-1) + 1)
                         ))


def named(spec: PartitionSpec) -> frozenset:
  """The axes that a spec names."""
  found: set = set()
  for names in getattr(spec, 'partitions', spec):
    if names is not None:
      found.update(names if isinstance(names, tuple) else (names,))
  return frozenset(found)


def partly_reduced(spec: PartitionSpec) -> bool:
  """True if a spec says that a value is reduced or unreduced over an axis."""
  return bool(getattr(spec, 'reduced', ()) or getattr(spec, 'unreduced', ()))


def unchecked(fun: Callable, like: ManualMap, in_specs: Sequence,
              out_specs: Sequence) -> Callable:
  """A shard_map of ``fun`` with the check off, over the same axes.

  Args:
    fun: a function of as many arguments as there are ``in_specs``, that gives
      a list.
    like: its mesh and manual axes.
    in_specs: for each argument.
    out_specs: for each result.
  """
  shard_map = releases.shard_map_module().shard_map
  takes = inspect.signature(shard_map).parameters
  options: dict[str, Any] = {
      'check_vma' if 'check_vma' in takes else 'check_rep': False}
  if 'axis_names' in takes:
    options['axis_names'] = set(like.manual)
  else:
    options['auto'] = frozenset(like.mesh.axis_names) - like.manual
  return shard_map(fun, mesh=like.mesh, in_specs=tuple(in_specs),
                   out_specs=list(out_specs), **options)
