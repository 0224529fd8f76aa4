# SPDX-License-Identifier: Apache-2.0
"""Jitted functions, and others that pass on their arguments.

``jax.jit`` has resolved ``static_argnums`` and ``static_argnames`` against the
function's signature when it made the function, and kept both: what is static in
a call is read, not inferred.
"""
from __future__ import annotations

from typing import Any, NamedTuple
import weakref

from jax._src.lib import xla_client

_PjitFunction = xla_client._xla.PjitFunction


def is_jitted(fun: Any) -> bool:
  """True if ``fun`` was made by ``jax.jit``, and not only wraps what was."""
  return isinstance(fun, _PjitFunction) and hasattr(fun, '_jit_info')


# By a function of Mend's, the one to which it passes on all that it is given.
_passed_to: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def passing_on(call: Any, fun: Any) -> Any:
  """A function, noted as one that passes on its arguments to another.

  Args:
    call: the function.
    fun: the other.
  """
  _passed_to[call] = fun
  return call


def passed_to(call: Any) -> Any:
  """The function that is called for a function of Mend's; None of another."""
  try:
    return _passed_to.get(call)
  except TypeError:  # neither a function, nor with a hash
    return None


class Call(NamedTuple):
  """The arguments of a call of a function, its static ones apart.

  Attributes:
    positions: those of the static positional arguments.
    statics: the static keyword arguments, by name.
    arrays: the other positional arguments, in their order.
    keywords: the other keyword arguments, by name.
  """
  positions: frozenset[int]
  statics: dict[str, Any]
  arrays: tuple[Any, ...]
  keywords: dict[str, Any]

  @property
  def has_statics(self) -> bool:
    return bool(self.positions or self.statics)


def call(fun: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
  """The call of ``fun`` with these arguments; none is static without jit."""
  info = fun._jit_info if is_jitted(fun) else None
  numbers = info.static_argnums if info else ()
  names = info.static_argnames if info else ()
  positions = frozenset(i % len(args) for i in numbers
                        if -len(args) <= i < len(args))
  return Call(positions, {k: v for k, v in kwargs.items() if k in names},
              tuple(a for i, a in enumerate(args) if i not in positions),
              {k: v for k, v in kwargs.items() if k not in names})


def parameters(traced: Any) -> dict[str, Any]:
  """Options of ``jax.jit`` for a ``Traced``, by the names of its primitive.

  It is empty for what another transformation traced, ``jax.pmap`` for one.
  """
  if hasattr(traced, '_params'):
    return traced._params
  return getattr(traced._lower_callable, 'keywords', {})  # before 0.7.2


def arguments(traced: Any) -> list[Any]:
  """The leaves that a ``Traced`` was made of: arrays, or what tells of them."""
  # Those of 0.8.1 and later are no arrays, but have their attributes.
  name = ('_meta_tys_flat' if hasattr(traced, '_meta_tys_flat')
          else '_args_flat')
  return list(getattr(traced, name) or ())
