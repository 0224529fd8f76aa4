# SPDX-License-Identifier: Apache-2.0
"""Stages of a function within `compute_on`, or why it has none (jax#27825).

`compute_on` around a jitted function used to return a plain Python function: it
had no `lower`, or, where attributes were copied, one that knew nothing of the
compute type. Now it returns a jitted function (see `jit`), so every
stage that `jax.jit` has is there and runs under the compute type. Around any
other function it returns an object that is called as before and says, when a
stage is asked for, that `jax.jit` must come first.

There are two dialects. Up to 0.10.2 `compute_on(compute_type)` is a context
manager, which is a decorator too; from 0.10.2 on a function takes the function
with the compute type and the memory spaces of its results. `as_transform` and
`as_functional` decorate the base's own definitions of them.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import functools
import threading
import types
from typing import Any

from jax._src import traceback_util
from jax._src.compute_on_ahead import refusals
from jax._src.compute_on_ahead import jit as compute_on_jit
from jax._src.mend import jitted
from jax._src.mend import pages

traceback_util.register_exclusion(__file__)

Fun = Callable[..., Any]

_STAGES = ('lower', 'trace', 'eval_shape', 'clear_cache')


def as_transform(manager: Callable[[str], Any]) -> Callable[[str], ComputeOn]:
  """Gives stages to what the context-manager form of `compute_on` decorates.

  Args:
    manager: the base's `compute_on`, which makes a context manager.

  Returns:
    `compute_on`, to be used in a `with` statement, as a decorator, or as
    `compute_on(compute_type)(f)`.
  """
  @functools.wraps(manager)
  def compute_on(compute_type: str) -> ComputeOn:
    refusals.check_compute_type(compute_type)
    return ComputeOn(manager, compute_type)
  return compute_on


class ComputeOn(contextlib.ContextDecorator, contextlib.AbstractContextManager):
  """The context manager that `compute_on(compute_type)` returns."""

  def __init__(self, manager: Callable[[str], Any], compute_type: str):
    self._enter = functools.partial(manager, compute_type)
    self._compute_type = compute_type
    self._local = threading.local()

  def __enter__(self):
    entered = self._enter()
    entered.__enter__()
    self._local.stack = (*getattr(self._local, 'stack', ()), entered)

  def __exit__(self, *exc_info):
    *self._local.stack, entered = self._local.stack
    return entered.__exit__(*exc_info)

  def __call__(self, fun: Fun) -> Any:
    refusals.check_function(fun, self._compute_type)
    if jitted.is_jitted(fun):
      return compute_on_jit.remembered(
          fun, self._compute_type,
          lambda: compute_on_jit.jitted_in_context(fun, self._enter))
    call = compute_on_jit.in_context(fun, self._enter)
    return UnjittedComputeOn(fun, call, self._compute_type, self._enter)


def as_functional(transform: Callable[..., Fun]) -> Callable[..., Any]:
  """Gives stages to what the functional form of `compute_on` returns.

  Args:
    transform: the base's function of `f`, `compute_type`, `out_memory_spaces`
      and, since 0.10.1, `compiler_options`, which returns a function of
      arrays.

  Returns:
    A function of the same arguments.
  """
  @functools.wraps(transform)
  def compute_on(f, *, compute_type, out_memory_spaces, **options):
    refusals.check_compute_type(compute_type)
    refusals.check_function(f, compute_type)
    apply = functools.partial(
        transform, compute_type=compute_type,
        out_memory_spaces=out_memory_spaces, **options)

    def make():
      # pylint: disable-next=g-import-not-at-top
      from jax._src.compute_on_ahead import call as compute_on_call
      call = compute_on_call.FunctionalCall(
          f, apply, compute_type, out_memory_spaces)
      if not jitted.is_jitted(f):
        return UnjittedComputeOn(f, call, compute_type)
      return compute_on_jit.jitted_around(f, call)

    if not jitted.is_jitted(f):
      return make()
    from jax._src import tree_util  # pylint: disable=g-import-not-at-top
    leaves, tree = tree_util.tree_flatten((out_memory_spaces, options))
    return compute_on_jit.remembered(
        f, ('functional', compute_type, tree, *leaves), make)
  return compute_on


class UnjittedComputeOn:
  """`compute_on` around a function that is not jitted: called as before."""

  def __init__(self, fun: Fun, call: Fun, compute_type: str,
               enter: Callable[[], Any] | None = None):
    """
    Args:
      fun: the user's function.
      call: runs it under the compute type.
      compute_type: a valid compute type.
      enter: in the context dialect, makes the context manager.
    """
    functools.update_wrapper(self, fun)
    for name in _STAGES:
      self.__dict__.pop(name, None)  # Copied, it would run outside the context.
    self._call = call
    self._compute_type = compute_type
    self._enter = enter

  def __call__(self, /, *args, **kwargs):
    return self._call(*args, **kwargs)

  def __get__(self, obj, owner=None):
    return self if obj is None else types.MethodType(self, obj)

  def __repr__(self):
    return f'<compute_on {self._compute_type!r} of {self.__wrapped__!r}>'

  def __getattr__(self, name: str):
    fun = self.__dict__.get('__wrapped__')
    if name not in _STAGES or fun is None:
      raise AttributeError(
          f'{type(self).__name__!r} object has no attribute {name!r}')
    # Not jax.jit's, but it has stages: jax.pmap of 0.5.3 and 0.6.0.
    if self._enter is not None and callable(getattr(fun, name, None)):
      return compute_on_jit.in_context(getattr(fun, name), self._enter)
    label = getattr(fun, '__name__', 'f')
    if self._enter is not None:
      line = f"compute_on('{self._compute_type}')(jax.jit({label}))"
    else:
      line = (f"compute_on(jax.jit({label}),"
              f" compute_type='{self._compute_type}', out_memory_spaces=...)")
    raise AttributeError(
        f'the result of `compute_on` has no {name!r}, because {label} is not'
        f' jitted. Apply jax.jit to it first: `{line}.{name}(...)`.' +
        pages.see('compute_on_ahead.md#ways-to-reach-the-host'))
