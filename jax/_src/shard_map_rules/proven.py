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
"""Outputs that were proven replicated before differentiation.

``shard_map`` checks its function each time that it is staged, in ``jax.grad``
also what partial evaluation made of it. There the proof can fail although
nothing went wrong: the branches of a ``cond`` share places for their
residuals, and a loop hands what it does not change from one part of its body
to the other through such places, so that a replicated value takes the type of
another branch's varying one. The results themselves are those of the function
that was proven, and ``jvp`` says so in the names of the axes that belong to
each output: a result need not be proven again; a tangent, which may come from
a rule of the user's, has to be.
"""
from __future__ import annotations


class Proven(dict):
  """Axis names of an output that was proven to be replicated."""


class Unproven(dict):
  """Axis names of a tangent."""


def of_jvp(names, num_primals: int | None = None) -> tuple[dict, ...]:
  """Marks outputs while a derivative is taken.

  Args:
    names: the axis names, of the results, then of their tangents.
    num_primals: how many results there are, if there are tangents.
  """
  if num_primals is None:
    num_primals = len(names)
  primals = tuple(n if isinstance(n, Unproven) else Proven(n)
                  for n in names[:num_primals])
  return (*primals, *map(Unproven, names[num_primals:]))


def keep(old, new) -> list[dict]:
  """Returns the names `new`, each marked as the one in `old` is."""
  return [type(o)(n) for o, n in zip(old, new)]


def refuse_tangents(mesh, reps, num_outs: int) -> None:
  """Raises if what could not be proven is a tangent.

  Args:
    mesh: the mesh of the shard_map.
    reps: per output that failed, its type; other objects for the others.
    num_outs: the number of results of the function; tangents follow them.
  """
  for rep in reps[num_outs:]:
    if isinstance(rep, set):
      axes = ', '.join(repr(a) for a in mesh.axis_names if a not in rep)
      raise ValueError(
          "shard_map: the tangent of an output that out_specs declare to be "
          f"replicated varies over mesh axis {axes}. Expected the derivative "
          "of a replicated value to be replicated, got a rule of jax.custom_jvp"
          " or jax.custom_vjp that makes it differ between devices. In the "
          "rule, make the tangent the same on all of them, for instance with "
          "jax.lax.psum or jax.lax.pmean.")
