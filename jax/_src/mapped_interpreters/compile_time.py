# SPDX-License-Identifier: Apache-2.0
"""``jax.ensure_compile_time_eval`` inside of shard_map.

It evaluates what doesn't depend on a traced value while the program is traced.
Inside of shard_map two things were in its way. Where ``jax.set_mesh`` has named
devices, operations tried to place their results on them, by the mesh whose axes
are Manual there, which says nothing of devices: a bare AssertionError
(diffrax#738). So the devices are forgotten meanwhile, as if the mesh had been
given to shard_map alone. And a shard_map that isn't under jit traces, too, but
had no notion of evaluating: what it computed stayed abstract.

What tells devices apart or is a collective isn't evaluated by eager shard_map:
its value isn't known to one device. Where other axes of the mesh are Explicit,
the types of what is evaluated would name them, so the mesh is forgotten, too;
eager shard_map evaluates nothing there, and computes as it does everywhere.

Limits: a jitted function is refused there, as before (its types are those of
the mesh that it was traced with).
"""
from __future__ import annotations

from collections.abc import Callable
import contextlib

from jax._src import config
from jax._src import core
from jax._src.mend import releases
from jax._src.mend import traces
from jax._src import mesh as mesh_lib


# What is staged out for constants, too, where the function says so.
_kept: dict[core.Primitive, Callable[[], bool]] = {}


@contextlib.contextmanager
def without_devices():
  """Forgets the devices of ``jax.set_mesh``, where some axis is Manual."""
  if not mesh_lib.get_abstract_mesh()._any_axis_manual:
    yield
    return
  with releases.use_concrete_mesh()(releases.no_concrete_mesh()):
    yield


def is_known(*args) -> bool:
  """True if what depends on `args` alone is to be evaluated now."""
  return (config.eager_constant_folding.value and
          not any(isinstance(x, core.Tracer) for x in args) and
          not _types_place(mesh_lib.get_abstract_mesh()))


def _types_place(mesh: mesh_lib.AbstractMesh) -> bool:
  """True over a mesh with Explicit axes beside Manual ones.

  A type over them would place a value that is evaluated, and knows no devices.
  """
  return mesh._any_axis_manual and mesh._any_axis_explicit


def without_mesh(evaluate):
  """An evaluation of an operation, with no mesh whose types would place.

  Args:
    evaluate: is called with known values and, of a primitive, its parameters.
      Those of a jitted function hold the mesh that it was traced with, and it
      is refused as before.
  """
  if not _types_place(mesh_lib.get_abstract_mesh()):
    return evaluate

  def evaluate_without_mesh(*args):
    if any(isinstance(x, dict) and 'ctx_mesh' in x for x in args):
      return evaluate(*args)
    with mesh_lib.use_abstract_mesh(mesh_lib.empty_abstract_mesh):
      return evaluate(*args)
  return evaluate_without_mesh


def keep(primitive: core.Primitive, where: Callable[[], bool]) -> None:
  """Has a primitive staged out for constants, too, if ``where()`` is true."""
  _kept[primitive] = where


def is_kept(primitive: core.Primitive) -> bool:
  """True if what the primitive makes of constants isn't evaluated here."""
  return primitive in _kept and _kept[primitive]()


def fold_constants(primitive: core.Primitive, args, params):
  """Evaluates an operation in an eager shard_map.

  Args:
    primitive: the operation.
    args: its arguments, as the trace has them.
    params: its parameters.

  Returns:
    Its results, or None if it isn't to be evaluated now: outside of
    ``jax.ensure_compile_time_eval``, with an argument that is traced, or with
    an effect, such as to name an axis.
  """
  if not is_known(*args) or is_kept(primitive):
    return None
  _, effects = primitive.abstract_eval(*map(traces.typeof, args), **params)
  if effects:
    return None
  with core.set_current_trace(core.eval_trace):
    return primitive.bind(*args, **params)
