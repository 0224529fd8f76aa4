# SPDX-License-Identifier: Apache-2.0
"""One call of functional `compute_on` on its arguments (jax#27825).

The base's transformation takes arrays, in 0.10.2 by position only. This adds
what a call may need besides:

- keyword arguments, passed as a dictionary where the base takes none;
- static arguments of a jitted function, bound before the base sees the rest;
- compiler options of a jitted function, which `jax.jit` refuses once it is
  inside: the caller puts them outside, so here it is called without them;
- the same compute type within itself. The base refuses it when it lowers; here
  the inner call is made in place, and only results that were asked for in
  another memory space are moved.

Where none of these is present, the base gets the function it was given, so its
trace cache finds it again.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import inspect
import threading
from typing import Any

from jax._src import config
from jax._src import traceback_util
from jax._src.compute_on_ahead import jit as compute_on_jit
from jax._src.mend import jitted

traceback_util.register_exclusion(__file__)

Fun = Callable[..., Any]

_staging = threading.local()  # .types: the compute types of calls under way


class FunctionalCall:
  """Applies functional `compute_on` to one function."""

  def __init__(self, fun: Fun, transform: Callable[[Fun], Fun],
               compute_type: str, out_memory_spaces: Any):
    """
    Args:
      fun: the user's function, jitted or not.
      transform: the base's `compute_on`, all but the function given.
      compute_type: a valid compute type.
      out_memory_spaces: a memory space, or a tree prefix of them.
    """
    self._fun: Any = fun
    self._body = (compute_on_jit.without_compiler_options(fun)
                  if jitted.is_jitted(fun) else fun)
    self._transform = transform
    self._compute_type = compute_type
    self._out_memory_spaces = out_memory_spaces
    self._prepare(self._body)
    params = inspect.signature(self._call).parameters.values()
    self._takes_keywords = any(p.kind is p.VAR_KEYWORD for p in params)

  def _prepare(self, body: Fun) -> None:
    self._call = self._transform(body)
    self._packed = self._transform(lambda args, kwargs: body(*args, **kwargs))

  def clear(self) -> None:
    """Forgets the traces of a jitted function."""
    self._fun.clear_cache()
    # The base's trace cache is keyed on the function: give it another one.
    self._prepare(functools.wraps(self._body)(
        lambda *args, **kwargs: self._body(*args, **kwargs)))

  def __call__(self, /, *args, **kwargs):
    if self._is_nested():
      return _moved(self._body(*args, **kwargs), self._out_memory_spaces)
    outer = getattr(_staging, 'types', ())
    _staging.types = (*outer, self._compute_type)
    try:
      call = jitted.call(self._fun, args, kwargs)
      if call.has_statics:
        return self._with_statics(args, call)
      if kwargs and not self._takes_keywords:
        return self._packed(args, kwargs)
      return self._call(*args, **kwargs)
    finally:
      _staging.types = outer

  def has_statics(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """True if any of these arguments is static."""
    return jitted.call(self._fun, args, kwargs).has_statics

  def _with_statics(self, args: tuple[Any, ...], call: jitted.Call):
    def body(arrays, keywords):
      rest = iter(arrays)
      full = [a if i in call.positions else next(rest)
              for i, a in enumerate(args)]
      return self._body(*full, **call.statics, **keywords)
    return self._transform(body)(call.arrays, call.keywords)

  def _is_nested(self) -> bool:
    """True if the same compute type is being staged around this call."""
    types: tuple = getattr(_staging, 'types', ())
    return (bool(types) and types[-1] == self._compute_type
            == config.compute_on_context_manager.value)


def _moved(out: Any, out_memory_spaces: Any) -> Any:
  """Moves the arrays that are in another memory space than asked for."""
  # pylint: disable=g-import-not-at-top
  from jax._src import api, api_util, core, tree_util
  # pylint: enable=g-import-not-at-top
  leaves, tree = tree_util.tree_flatten(out)
  spaces = api_util.flatten_axes(
      'compute_on out_memory_spaces', tree, out_memory_spaces)
  return tree_util.tree_unflatten(tree, [
      x if core.typeof(x).memory_space == s else api.device_put(x, s)
      for x, s in zip(leaves, spaces)])
