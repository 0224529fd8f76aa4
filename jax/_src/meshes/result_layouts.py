# SPDX-License-Identifier: Apache-2.0
"""Results of ``jit`` that the mesh of the context can't express.

A result that nobody asked a layout for has the one that XLA chose, mostly an
argument's. Upstream writes it as a spec of the context's mesh, or of that of
the first argument that has one. Where neither has axes of fitting sizes, that
was an IndivisibleError after all had been compiled. Now it is written over the
mesh of another argument, or of a constraint inside; or, if none of these fits,
left as XLA's own sharding. The layout is the same in any case. So is what lies
on one device of a mesh, a callback's result for one, which no spec expresses.

Cost: nothing where the first mesh fits.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any

from jax._src import sharding_impls
from jax._src.mesh import Mesh
from jax._src.sharding import IndivisibleError


def kept(convert: Callable) -> Callable:
  """A function of a sharding and others, that leaves what it can't convert."""
  def attempt(sharding, *others):
    try:
      return convert(sharding, *others)
    except IndivisibleError:
      return sharding
  return attempt


def over_any_mesh(recover: Callable) -> Callable:
  """Wraps what makes named shardings of XLA's.

  Args:
    recover: a function of the shardings of arguments, and of results.

  Returns:
    A function that writes what `recover` has left over another argument's mesh,
    or over that of a constraint inside.
  """
  @functools.wraps(recover)
  def recovered(old_shardings, new_shardings, old_avals, new_avals,
                intermediate_shardings=None, context_mesh=None):
    found = recover(old_shardings, new_shardings, old_avals, new_avals,
                   intermediate_shardings, context_mesh)
    known = [*old_shardings, *(intermediate_shardings or ())]
    return [_over_one_of(s, known) for s in found]
  return recovered


def _over_one_of(sharding: Any, known: list[Any]) -> Any:
  if not isinstance(sharding, sharding_impls.GSPMDSharding):
    return sharding
  if sharding._hlo_sharding.is_maximal():
    return sharding
  meshes = [s.mesh for s in known
            if isinstance(s, sharding_impls.NamedSharding)
            and isinstance(s.mesh, Mesh)
            and s._internal_device_list == sharding._internal_device_list]
  write = kept(sharding_impls._gspmd_to_named_sharding_via_mesh)
  # Over Explicit axes the layout, which XLA chose, would be part of the type.
  for mesh in sorted(meshes, key=lambda m: m._any_axis_explicit):
    named = write(sharding, mesh)
    if named is not sharding:
      return named
  return sharding
