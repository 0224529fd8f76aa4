# SPDX-License-Identifier: Apache-2.0
"""The jitted function that `compute_on` makes of a jitted function (jax#27825).

It is made by `jax.jit` from the options of the one it was given, over a Python
function that enters the compute type and then calls the original body. So
lowering, exporting and dispatch are `jax.jit`'s own, at `jax.jit`'s own cost,
and no cache can mistake one compute type for another: the function that the
caches are keyed on differs.

Within another trace a call must stage what the base stages: in the context
dialect (up to 0.10.2) a call that itself carries the compute type, in the
functional dialect a `compute_on` equation around the jitted call. A trace
therefore enters by `entry_point`, which `jax.jit` asks on a cache miss.

What is made is kept with the jitted function, one for each set of arguments of
`compute_on`, so that `compute_on(...)(jitted)(x)` in a loop traces once; both
are freed together.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
import functools
from typing import Any
import weakref

from jax._src.mend import releases
from jax._src import traceback_util

traceback_util.register_exclusion(__file__)

Fun = Callable[..., Any]


def in_context(fun: Fun, enter: Callable[[], Any]) -> Fun:
  """Returns `fun`, called within the context manager that `enter` makes."""
  @functools.wraps(fun)
  def call(*args, **kwargs):
    with enter():
      return fun(*args, **kwargs)
  return call


def jitted_in_context(jitted: Any, enter: Callable[[], Any]) -> Any:
  """The jitted function that enters a compute type, with the same options.

  Args:
    jitted: a function made by `jax.jit`.
    enter: makes the context manager that sets the compute type.

  Returns:
    A function as made by `jax.jit`.
  """
  from jax._src import core  # pylint: disable=g-import-not-at-top
  inside: Any = in_context(jitted._fun, enter)

  def around(cache_miss):
    def miss(*args, **kwargs):
      if core.trace_state_clean():
        return cache_miss(*args, **kwargs)
      # The staged call carries the compute type, not only its body.
      with enter():
        return cache_miss(*args, **kwargs)
    return miss

  inside._compute_on_entry = _Entry(inside, around)
  return _presented_as(
      jitted, releases.make_jitted()(inside, jitted._jit_info))


def jitted_around(jitted: Any, call: Any) -> Any:
  """The jitted function around a call of functional `compute_on`.

  Its options are those that matter outside: static and donated arguments,
  unused ones, compiler options. Shardings stay with the function inside.

  Args:
    jitted: a function made by `jax.jit`.
    call: applies `compute_on` to `jitted`, a `call.FunctionalCall`.

  Returns:
    A function as made by `jax.jit`.
  """
  from jax._src import api, core  # pylint: disable=g-import-not-at-top
  info = jitted._jit_info

  def inside(*args, **kwargs):
    return call(*args, **kwargs)
  functools.update_wrapper(inside, jitted)

  def around(cache_miss):
    def miss(*args, **kwargs):
      if core.trace_state_clean() or call.has_statics(args, kwargs):
        return cache_miss(*args, **kwargs)
      return call(*args, **kwargs), None, False
    return miss

  entered: Any = inside
  entered._compute_on_entry = _Entry(inside, around, call.clear)
  return _presented_as(jitted, api.jit(
      inside, static_argnums=info.static_argnums,
      static_argnames=info.static_argnames, donate_argnums=info.donate_argnums,
      donate_argnames=info.donate_argnames, keep_unused=info.keep_unused,
      compiler_options=dict(info.compiler_options_kvs) or None))


def without_compiler_options(jitted: Any) -> Any:
  """The jitted function for a call within another, where they are refused.

  Args:
    jitted: a function made by `jax.jit`.

  Returns:
    `jitted` if it has no compiler options, else a function as made by
    `jax.jit`, with its other options: shardings apply within another call too.
  """
  info = jitted._jit_info
  if not info.compiler_options_kvs:
    return jitted
  return _presented_as(jitted, releases.make_jitted()(
      jitted._fun, info._replace(compiler_options_kvs=())))


def _presented_as(jitted: Any, derived: Any) -> Any:
  return functools.update_wrapper(derived, jitted, updated=())


class _Entry:
  """An entry of the function `owner` in the caches, besides `jax.jit`'s."""

  def __init__(self, owner: Fun, around: Callable[[Fun], Fun],
               clear: Callable[[], None] = lambda: None):
    self.owner = owner
    self.around = around  # Of `jax.jit`'s own entry on a cache miss.
    self.clear = clear    # Forgets the traces that `jax.jit` does not know of.


def _entry(fun: Fun) -> _Entry | None:
  entry = getattr(fun, '_compute_on_entry', None)
  # functools.wraps copies attributes, so look whose entry this is.
  return entry if entry is not None and entry.owner is fun else None


def entry_point(fun: Fun, cache_miss: Fun) -> Fun:
  """Returns what a jitted function calls on a dispatch cache miss.

  Args:
    fun: the function that `jax.jit` was given.
    cache_miss: `jax.jit`'s own entry, of the arguments. It returns the outputs,
      the data for dispatch from C++, and whether to drop the cache's entry.
  """
  entry = _entry(fun)
  return cache_miss if entry is None else entry.around(cache_miss)


def clear(jitted: Any) -> None:
  """Clears what `jitted.clear_cache` must clear besides its own caches."""
  entry = _entry(jitted._fun)
  if entry is not None:
    entry.clear()


class _Derived(dict):
  """Functions that were made from the jitted function `owner`."""

  def __init__(self, owner: Any):
    super().__init__()
    self.owner = weakref.ref(owner)


def remembered(jitted: Any, key: Hashable, make: Callable[[], Any]) -> Any:
  """Returns what `make` made for this function and key, making it once.

  Args:
    jitted: a function made by `jax.jit`.
    key: tells apart what can be made from it; remembered only if hashable.
    make: makes it.
  """
  try:
    hash(key)
  except TypeError:
    return make()
  derived = getattr(jitted, '_compute_on_derived', None)
  if derived is None or derived.owner() is not jitted:
    derived = jitted._compute_on_derived = _Derived(jitted)
  if key not in derived:
    # Two threads may both get here: the first to arrive is the one kept.
    derived.setdefault(key, make())
  return derived[key]
