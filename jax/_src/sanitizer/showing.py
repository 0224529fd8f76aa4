# SPDX-License-Identifier: Apache-2.0
"""jax.debug.show_varying: a program's lines, with what their values vary over.

The function is traced, as ``jit`` would, and not run; what is shown is read
from its jaxpr (``annotated``, ``reasons``, ``lines``) and the user's files.
Nothing is added to a program: no name annotated and no mark.

Limits: what ``jit`` has traced before is shown as it was traced. A program
without its source files (typed into a plain interpreter before Python 3.13) is
shown by line numbers only.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
import os

import jax
from jax._src.mend import jitted
from jax._src.mend import pages
from jax._src.sanitizer import lines as lines_lib
from jax._src.sanitizer import pictures

_NAME = 'jax.debug.show_varying'


class VaryingProgram:
  """The lines of a program, with what their values vary over.

  ``str`` gives them as text; in a notebook they are shown in colours.

  Attributes:
    html: a page that needs nothing else.
  """

  def __init__(self, program: lines_lib.Program):
    self._program = program

  def __str__(self) -> str:
    return pictures.text(self._program)

  def __repr__(self) -> str:
    files = self._program.files.values()
    counts = [lines_lib.count(files, kind) for kind in ('cast', 'sum')]
    return (f'VaryingProgram({sum(map(len, files))} lines, {counts[0]} casts '
            f'and {counts[1]} sums put in)')

  def _repr_html_(self) -> str:
    return pictures.fragment(self._program)

  @property
  def html(self) -> str:
    return pictures.page(self._program)

  def save(self, path: str | os.PathLike) -> None:
    """Writes the page to a file."""
    with open(path, 'w', encoding='utf-8') as f:
      f.write(self.html)


def show_varying(f: Callable) -> Callable[..., VaryingProgram]:
  """Shows what the values on each line of a function vary over.

  In every :func:`jax.shard_map` that ``f`` calls, a value may differ between
  the devices along some manual mesh axes. The returned function traces ``f``,
  prints the lines of the program with these axes, and says on which lines JAX
  has put in a cast to vary over more of them, or a sum over devices for a
  gradient, and why. Bodies of loops and branches are shown as they are at the
  end, when what their values vary over doesn't change any more. Nothing is run.

  A line shows the values that other lines use; several sets of axes on it are
  in the order of the program. With ``check_vma=False``, and up to jax 0.5.3,
  where types have no axes, these are inferred.

  Args:
    f: a function of arrays, or of trees of them, that calls ``shard_map``; or
      one that :func:`jax.jit` made, with its static arguments.

  Returns:
    A function that takes what ``f`` does, or ``jax.ShapeDtypeStruct`` in place
    of arrays, prints, and returns what it printed: an object whose ``html`` is
    a page that needs nothing else, and whose ``save`` writes it to a file.

  Examples:
    >>> import jax
    >>> import jax.numpy as jnp
    >>> jax.debug.show_varying(lambda x: x * 2)(jnp.ones(()))
    jax.debug.show_varying: no shard_map in this function.
    VaryingProgram(0 lines, 0 casts and 0 sums put in)
  """
  if not callable(f):
    raise TypeError(f'{_NAME} expected a function, got {f!r}. Give it the '
                    'function, and the arguments to what it returns.' +
                    pages.see('sanitizer.md#what-to-expect'))
  traceable = jax.jit(f)

  @functools.wraps(f)
  def shown(*args, **kwargs):
    call = jitted.call(f, args, kwargs)
    traced = (f if call.has_statics else traceable).trace(*args, **kwargs)
    program = VaryingProgram(lines_lib.of_program(traced.jaxpr))
    print(program)
    return program

  return shown
