# SPDX-License-Identifier: Apache-2.0
"""Types in a nested shard_map, which vary over the outer one's axes as well.

0.6.0 types an argument of a nested shard_map by its in_spec alone, so that the
axes along which it varied outside are lost: the result seems to be the same on
all devices along them, and the transpose of the cast that follows sums over
devices what each of them has for itself. Here types keep those axes, and what
shard_map names, in the specs of what differentiation keeps and in the check of
out_specs, are the axes that it makes manual itself. Later releases type nested
shard_maps so.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax._src import core
from jax._src.mesh import use_abstract_mesh
from jax._src.varying.types import Axes


def outside() -> Axes:
  """The axes that are manual where this is called."""
  return frozenset(core.get_axis_env().axis_sizes)


def replication(mesh, auto: Axes, varying: Axes) -> Axes:
  """The axes that a shard_map makes manual and a value doesn't vary along.

  Those that are manual already count as such: they aren't for its specs to
  name.
  """
  return frozenset(mesh.axis_names) - auto - (varying - outside())


def cut(names: Sequence[dict], axes: Axes) -> list[dict]:
  """Specs, as dimensions with the axes that split them, without some axes."""
  return [{dim: tuple(n for n in split if n not in axes)
           for dim, split in spec.items()} for spec in names]


def within(mesh, split: Callable[[], Any]) -> Any:
  """The result of ``split``, in the mesh inside of a shard_map.

  While a remat is split, 0.6.0 has the axes of the shard_maps around it, and
  not their mesh, of which the types of residuals are.
  """
  with use_abstract_mesh(mesh):
    return split()
