# SPDX-License-Identifier: Apache-2.0
"""jax.debug.check_replication: finds where devices differ and should not.

The function is traced once, as ``jit`` would, and its jaxpr evaluated again
with comparisons between devices (``programs``, ``bodies``), compiled as one
program. Devices send what differs to the host (``findings``), and the first of
it in the program's order is raised when the program has ended. What is compiled
is kept with the function that is returned, for arguments of the same types.

Cost: every value that is to be the same on several devices is read once more,
for its digest, and kept until the next loop, branch or end of a body; there is
one small reduction over devices for each of these places. Nothing is compiled
into a program that isn't called through this function.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import functools
from typing import Any
import warnings

import jax
from jax._src import core
from jax._src.mend import jitted
from jax._src.mend import pages
from jax._src.mend import releases
from jax._src.sanitizer import findings as findings_lib
from jax._src.sanitizer import programs
from jax._src.sanitizer import comparing
from jax._src import tree_util

ReplicationError = findings_lib.ReplicationError
_NAME = 'jax.debug.check_replication'
_KEPT = 8  # compiled programs of a function


def check_replication(
    f: Callable, *, rtol: float | None = None, max_checks: int | None = None,
    functions: Sequence[str | Callable] | None = None) -> Callable:
  """Runs a function and finds the first place where devices wrongly differ.

  In every :func:`jax.shard_map` that ``f`` runs, each value whose type does not
  vary along a manual mesh axis is compared between the devices along that axis,
  bit for bit (nan is equal to nan), unless it is what an operation on single
  elements makes of values that are compared. So are arguments along the axes
  that their ``in_specs`` leave out, results along those that ``out_specs``
  leave out, and the predicates of loops and branches. So are predicates whose
  types vary, along axes along which they are taken to be the same: something in
  the loop or branch communicates over them. With
  ``check_vma=False``, and up to jax 0.5.3, where types don't say what varies,
  that is inferred; of what can't be, a warning says so. Shard_maps that
  derivatives make are compared too.

  The returned function must be called outermost: not under a transformation,
  and not inside of :func:`jax.jit`. Transform ``f`` itself:
  ``check_replication(jax.grad(loss))(x)``.

  It costs a pass over every value that is compared, and one small reduction
  over devices for each body of a shard_map, loop or branch: a training step of
  24 scanned layers takes 1.1 times its time on CPU devices, their inference 1.8
  times, and compilation up to four times as long. A
  program that isn't called through it stays as it was. Large programs can be
  looked at in part with ``max_checks`` or ``functions``.

  Args:
    f: a function of arrays, or of trees of them, that calls ``shard_map``; or
      one that :func:`jax.jit` made, with its static arguments.
    rtol: if given, floating point values may differ by this fraction of the
      greatest of each element.
    max_checks: if given, at most as many results of operations are compared,
      from the program's first on. Arguments, results and predicates of loops
      and branches always are.
    functions: if given, only results of operations that were traced within
      these Python functions, given by their names or themselves.

  Returns:
    A function that takes what ``f`` does and returns what ``f`` does. Its
    attribute ``claims`` is the number of predicates in the program that its
    last call ran that were compared because they are taken to be the same,
    though what they are computed from varies.

  Raises:
    TypeError: if ``f`` is no function.
    ValueError: if ``rtol`` is negative, or nan.
    ReplicationError: by the returned function, with the first place where
      devices differ: the program's line, the mesh axis, the iterations of the
      loops around it, the values on the devices, and whether the operands
      agree.

  Examples:
    >>> import jax
    >>> import jax.numpy as jnp
    >>> jax.debug.check_replication(lambda x: x * 2)(jnp.ones(()))
    Array(2., dtype=float32)
  """
  if not callable(f):
    raise TypeError(f'{_NAME} expected a function, got {f!r}. Give it the '
                    'function, and the arguments to what it returns.' +
                    pages.see('sanitizer.md#what-to-expect'))
  if rtol is not None and not rtol >= 0:
    raise ValueError(f'{_NAME}: expected an rtol of at least 0, or None to '
                     f'compare bits, got {rtol}.' +
                     pages.see('sanitizer.md#what-to-expect'))
  names = functions if functions is None else frozenset(
      getattr(g, '__name__', g) for g in functions)
  kept: dict[int, tuple] = {}
  traceable = jax.jit(f)

  @functools.wraps(f)
  def checked(*args, **kwargs):
    _refuse_tracers((args, kwargs))
    call = jitted.call(f, args, kwargs)
    traced = (f if call.has_statics else traceable).trace(*args, **kwargs)
    jaxpr = traced.jaxpr
    if id(jaxpr) not in kept:
      while len(kept) >= _KEPT:
        del kept[next(iter(kept))]
      plan = comparing.Plan(rtol, max_checks, names, findings_lib.Findings())
      kept[id(jaxpr)] = jaxpr, plan, jax.jit(
          functools.partial(programs.run, plan, jaxpr))
    _, plan, program = kept[id(jaxpr)]
    try:
      outs = _run(plan, program, tree_util.tree_leaves(
          (call.arrays, call.keywords)))
    finally:
      vars(checked)['claims'] = len(plan.claims)
    return tree_util.tree_unflatten(
        tree_util.tree_structure(traced.out_info), outs)

  vars(checked)['claims'] = 0
  return checked


def _refuse_tracers(args: Any) -> None:
  """Refuses a call under a transformation or while something is traced."""
  if any(isinstance(x, core.Tracer) for x in tree_util.tree_leaves(args)) or (
      not core.trace_state_clean()):
    raise TypeError(
        f'{_NAME} expected to be called outermost, with arrays, and got called '
        'under a transformation such as jax.jit or jax.grad. Transform the '
        f'function that it is given: {_NAME}(jax.grad(f))(x).' +
        pages.see('sanitizer.md#limits'))


def _run(plan: comparing.Plan, program: Callable, leaves: list) -> list[Any]:
  """Runs a program to its end; raises what was found."""
  plan.findings.clear()
  option = releases.shardy_option()
  # GSPMD ends the process on callbacks beside keys, and in partly manual maps.
  with contextlib.nullcontext() if option is None else option(True):
    outs = jax.block_until_ready(program(leaves))
  jax.effects_barrier()
  error = plan.findings.error(plan.rtol, list(plan.notes))
  if error is not None:
    raise error
  if plan.notes:
    warnings.warn(
        f'{_NAME}: not compared, as nothing says along which axes it may '
        'differ: ' + '; '.join(plan.notes), stacklevel=3)
  return outs
