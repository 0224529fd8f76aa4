# SPDX-License-Identifier: Apache-2.0
"""Named facts of a release of JAX about types; see ``releases``.

How a release spells the axes that a type varies along, and what else types,
shardings, meshes' axes and results' descriptions have there.
"""
from __future__ import annotations

from collections.abc import Callable
import inspect
from typing import Any

from jax._src.mend import releases
import numpy as np


@releases.fact({'<=0.8.1': 'get_aval', '>=0.8.2': 'typeof'})
def typeof() -> Callable[[Any], Any]:
  """The function that gives a value's type."""
  return releases.first(('jax._src.core', 'typeof'),
                        ('jax._src.core', 'get_aval'))


@releases.fact({'<0.6': None, '>=0.6,<0.10': 'vma',
                '>=0.10': 'manual_axis_type.varying'})
def axes_in_types() -> str | None:
  """An array type's attribute, dotted, that holds the axes it varies along.

  Where there is none, shard_map's tracers hold the axes that they don't vary
  along.
  """
  if types_can_be_reduced():
    return 'manual_axis_type.varying'
  if releases.find('jax._src.core', 'ShapedArray.vma') is not None:
    return 'vma'
  return None


@releases.fact('>=0.10')
def types_can_be_reduced() -> bool:
  """True if there are manual axis types, which tell what is (un)reduced.

  Before, types hold varying axes at most.
  """
  return releases.find('jax._src.core', 'ShapedArray.mat') is not None


@releases.fact({'<0.7': 'jax._src.api', '>=0.7,<=0.8.0': 'jax._src.core',
                '>=0.8.1': 'jax'})
def structure_class() -> Any:
  """The class ``jax.ShapeDtypeStruct``; its ``__module__`` is the given one."""
  return releases.first(('jax._src.core', 'ShapeDtypeStruct'),
                ('jax._src.api', 'ShapeDtypeStruct'))


@releases.fact('>=0.6,<=0.8.0')
def casts_take_groups() -> bool:
  """True if the cast to varying has ``axis_index_groups``."""
  cast_p = releases.find('jax._src.core', 'pvary_p')
  return cast_p is not None and cast_p.multiple_results and (
      'axis_index_groups' in inspect.signature(cast_p.impl).parameters)


@releases.fact({'<=0.6.0': None, '>=0.6.1,<0.10': '_check_vmas',
                '>=0.10': '_check_mats'})
def check_of_out_specs() -> Callable[..., None] | None:
  """The function that checks results by out_specs."""
  if releases.optional_module('jax._src.shard_map') is None:
    return None
  return releases.first(('jax._src.shard_map', '_check_mats'),
                ('jax._src.shard_map', '_check_vmas'))


@releases.fact('>=0.9.1')
def out_specs_are_checked_by_type() -> bool:
  """True if the check is given types, not varying axes."""
  check = check_of_out_specs()
  return check is not None and 'avals' in inspect.signature(check).parameters


@releases.fact('<=0.7.1')
def mesh_cast_p() -> Any:
  """The primitive that changes the kinds of a mesh's axes."""
  return releases.find('jax._src.pjit', 'mesh_cast_p')


@releases.fact('')
def cast_to_mesh() -> tuple[Any, dict[str, Any]]:
  """The primitive that casts to a type of another mesh.

  ``mesh_cast`` up to 0.7.1, then ``reshard``.

  Returns:
    It, and its parameters besides ``dst_sharding``.
  """
  if (early := mesh_cast_p()) is not None:
    return early, {}
  takes = releases.takes('jax._src.pjit', '_reshard_batcher', 'concrete_mesh')
  return (releases.find('jax._src.pjit', 'reshard_p'),
          {'concrete_mesh': None} if takes else {})


@releases.fact('>=0.6.2')
def structures_declare() -> bool:
  """True if a ``ShapeDtypeStruct`` can declare axes."""
  return types_can_be_reduced() or hasattr(structure_class(), 'vma')


@releases.fact('>=0.8')
def shapes_tell_their_mesh() -> bool:
  """True if what ``eval_shape`` gives has the mesh of its axes.

  Before, who passes it on has declared nothing, and can't be told from who has.
  """
  mesh = releases.find('jax._src.mesh', 'AbstractMesh')
  return types_can_be_reduced() or hasattr(
      mesh, '_are_all_axes_explicit_or_manual')


@releases.fact('>=0.8')
def varying_types_have_a_mesh() -> bool:
  """True if a type that varies is one of a mesh."""
  if types_can_be_reduced() or axes_in_types() is None:
    return types_can_be_reduced()
  try:
    releases.find('jax._src.core', 'ShapedArray')(
        (), np.dtype(np.float32), vma=frozenset('x'))
  except (AssertionError, ValueError):
    return True
  return False


@releases.fact({'<=0.9.0.1': 'jax._src.pallas.pallas_call',
                '>=0.9.1': 'jax._src.pallas.core'})
def out_shape_converter() -> Callable[[Any], Any]:
  """Pallas' function from a result's description to its type."""
  return releases.first(('jax._src.pallas.core', '_convert_out_shape_to_aval'),
                ('jax._src.pallas.pallas_call', '_convert_out_shape_to_aval'))


@releases.fact('>=0.9.2')
def types_have_cotangents() -> bool:
  """True if a type gives that of its cotangents.

  Before, it is the type of tangents.
  """
  return releases.find('jax._src.core', 'AbstractValue.to_ct_aval') is not None


@releases.fact('>=0.6.2')
def shardings_update() -> bool:
  """True if ``NamedSharding.update`` is there."""
  return releases.find(
      'jax._src.named_sharding', 'NamedSharding.update') is not None


@releases.fact({'<=0.7.0': 'TransferToMemoryKind',
                '>=0.7.1': 'mem_kind_to_space'})
def memory_of_kind() -> Callable[[str], Any]:
  """The function from a memory's kind to a destination of ``device_put``.

  A memory space, or ``TransferToMemoryKind``.
  """
  return releases.first(('jax._src.core', 'mem_kind_to_space'),
                ('jax._src.sharding_impls', 'TransferToMemoryKind'))
