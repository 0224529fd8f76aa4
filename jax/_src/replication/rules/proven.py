# SPDX-License-Identifier: Apache-2.0
"""Outputs that were proven replicated before differentiation.

``shard_map`` checks its function each time that it is staged, in ``jax.grad``
also what partial evaluation made of it. There the proof can fail although
nothing went wrong: the branches of a ``cond`` share places for their
residuals, and a loop hands what it does not change from one part of its body
to the other through such places, so that a replicated value takes the type of
another branch's varying one. The results themselves are those of the function
that was proven, and ``jvp`` says so in the names of the axes that belong to
each output: a result need not be proven again.

Nor need its tangent, which is the same on all devices wherever the result is,
unless a rule of the user's made it differ. Such tangents carry a mark (see
``tangents``): where a program holds one, the tangents among its outputs are
proven like any other value. Evaluation without ``jit`` follows the marks from
one primitive to the next.
"""
from __future__ import annotations

from jax._src.mend import pages
from jax._src.replication.rules import tangents


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


def holds(mesh, rep, names) -> bool:
  """True if an output may have `names`, although its type does not say so.

  Args:
    mesh: the mesh of the shard_map.
    rep: the type of the output.
    names: the axis names that it is to have, marked as above.

  Raises:
    ValueError: if it is a tangent that a custom rule made differ.
  """
  if isinstance(names, Proven):
    return True
  if isinstance(names, Unproven) and not isinstance(rep, Loose):
    return True  # as its primal
  if isinstance(names, Unproven):
    mentioned = {n for ns in names.values() for n in ns}
    axes = ', '.join(repr(a) for a in mesh.axis_names
                     if a not in rep and a not in mentioned)
    raise ValueError(
        'shard_map: the tangent of an output that out_specs declare to be '
        f'replicated varies over mesh axis {axes}. Expected the derivative '
        'of a replicated value to be replicated, got a rule of jax.custom_jvp'
        ' that makes it differ between devices. In the rule, make the tangent '
        'the same on all of them, for instance with jax.lax.psum or '
        'jax.lax.pmean.' +
        pages.see('replication.md#gradients'))
  return False


class Loose(set):
  """The type of what may come from a tangent with a mark (see `tangents`)."""


def loosen(jaxpr, names, out_reps) -> list:
  """Returns the types of a jaxpr's outputs; of tangents, marks kept in mind."""
  if Unproven in map(type, names) and tangents.marked_in(jaxpr):
    return [r if r is None else Loose(r) for r in out_reps]
  return out_reps


def spread(prim, params, in_reps, out_reps):
  """Types of a primitive's outputs, as ``loosen`` gives those of a jaxpr."""
  if Loose not in map(type, in_reps) and not tangents.marked(prim, params):
    return out_reps
  if out_reps is None or isinstance(out_reps, set):
    return Loose(out_reps or ()) if out_reps is not None else None
  return [r if r is None else Loose(r) for r in out_reps]
