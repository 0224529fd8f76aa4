# SPDX-License-Identifier: Apache-2.0
"""Functions that say how they are partitioned, as a device computes them.

The function that ``custom_partitioning`` is handed back by its callback is for
one device, with that device's part of each operand, and is traced while XLA
compiles. Under ``jax.set_mesh`` with Explicit axes its operations would be
typed, and placed, as those of whole arrays. So it is traced as it is without a
mesh around; each operation is lowered in the context that it was traced in.

Up to 0.5.2 the types of its results are compared with types of no mesh, so that
is done under any mesh there.
"""
from __future__ import annotations

from collections.abc import Callable
import functools

from jax._src import mesh as mesh_lib
from jax._src.mend import axis_types


def without_mesh(fun: Callable) -> Callable:
  """A function that runs without the context's mesh.

  Args:
    fun: what traces the function of one device.
  """
  @functools.wraps(fun)
  def run(*args, **kwargs):
    with axis_types.use_abstract_mesh(mesh_lib.empty_abstract_mesh):
      return fun(*args, **kwargs)
  return run


def local(fun: Callable) -> Callable:
  """Runs a function without the context's mesh if that has Explicit axes.

  Args:
    fun: what traces the function of one device.
  """
  @functools.wraps(fun)
  def run(*args, **kwargs):
    types = mesh_lib.get_abstract_mesh()._name_to_type.values()
    explicit = axis_types.AxisType.Explicit in types
    return (without_mesh(fun) if explicit else fun)(*args, **kwargs)
  return run
