# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The mesh of a computation that nothing but its types places.

Over Explicit axes a type holds its mesh, without the devices. What has operands
finds these in them. What has none, eagerly and without ``jax.set_mesh``, was
refused: the cotangent that ``jax.grad`` begins with, the zeros for an argument
that a function ignores, a transposed call. (``jax.make_mesh`` gives Explicit
axes from 0.9 on, so ``jax.grad`` of a function of arrays over such a mesh, of a
``shard_map`` for one, failed without ``jit``.)

If one mesh of this process has that type, the computation is placed there. If
there are several, over other devices or in another order, it is refused as
before, for what the types leave open can't be known. Nothing changes where an
argument, a layout, a context or ``lowering_platforms`` says more.

Cost: nothing but a look at the results' types, where none has Explicit axes.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
import contextlib
from typing import Any

from jax._src import core
from jax._src import mesh as mesh_lib
from jax._src.meshes import known
from jax._src.named_sharding import NamedSharding
from jax._src.sharding_impls import UnspecifiedValue


def mesh_of(context: Any, jaxpr: Any, avals: Sequence[Any],
            shardings: Sequence[Any], platforms: Sequence[str] | None) -> Any:
  """The mesh that a computation runs on.

  Args:
    context: the mesh of the context; empty or None if there is none.
    jaxpr: the computation.
    avals: the types of its results.
    shardings: those of its arguments and results.
    platforms: what it is lowered for, if that was said.

  Returns:
    `context`; or, if that is empty, the one mesh that results' types can mean.
  """
  if context is not None and not context.empty or platforms is not None:
    return context
  meant = {a.sharding.mesh for a in avals if isinstance(a, core.ShapedArray)
           and a.sharding.mesh._any_axis_explicit and a.sharding.mesh.size > 1}
  if len(meant) != 1 or not all(isinstance(s, UnspecifiedValue)
                                for s in shardings):
    return context
  from jax._src import dispatch  # pylint: disable=g-import-not-at-top
  if any(_places(s) for s, _ in dispatch.get_intermediate_shardings(jaxpr)):
    return context
  return _only_one(*meant) or context


@contextlib.contextmanager
def use_mesh_of_type(mesh: Any) -> Iterator[None]:
  """Enters a type's mesh; where values are made at once, with its devices.

  Args:
    mesh: an abstract one.
  """
  concrete = None
  if (mesh._any_axis_explicit and mesh.size > 1 and
      mesh_lib.get_concrete_mesh().empty and _is_eager()):
    concrete = _only_one(mesh)
  from jax._src import sharding_impls  # pylint: disable=g-import-not-at-top
  with mesh_lib.use_abstract_mesh(mesh):
    if concrete is None:
      yield
    else:
      with sharding_impls._internal_use_concrete_mesh(concrete):
        yield


def _is_eager() -> bool:
  """Whether no trace stages what is done out, to be run later."""
  trace = core.trace_ctx.trace
  while trace is not None and not hasattr(trace, 'frame'):
    if isinstance(trace, core.EvalTrace):
      return True
    trace = getattr(trace, 'parent_trace', None)
  return False


def _only_one(abstract: Any) -> Any:
  """The one mesh of that type, or None if there is none or another."""
  strong = getattr(mesh_lib, '_mesh_object_dict', None)  # up to 0.6.0
  every = known.meshes() if strong is None else list(strong.values())
  found = [m for m in every if m.abstract_mesh == abstract]
  return found[0] if len(found) == 1 else None


def _places(sharding: Any) -> bool:
  """Whether a constraint says on which devices: a type's mesh does not."""
  return not (isinstance(sharding, UnspecifiedValue) or
              isinstance(sharding, NamedSharding) and
              isinstance(sharding.mesh, mesh_lib.AbstractMesh))
