# SPDX-License-Identifier: Apache-2.0
"""The signature by which a callable takes its arguments, itself.

``inspect.signature`` shows what ``functools.wraps`` says, the signature of the
innermost function. A decorator may pass on more than it takes, so a parameter's
name there need not be at the position that it has for the caller. Here only
what the callable is called by counts: of ``def wrapped(*args, **kwargs)``, just
that, with no name at any position.

What surely passes on its arguments as they are is looked through: functions
made by ``jax.jit``, ``custom_jvp`` and ``custom_vjp``, and by the
transformations in `_transforms`, all unless ``functools.wraps`` has renamed
them after another function.

Limits: other decorators aren't looked through, also those that pass on all. A
``__signature__`` that somebody has set is believed, except where
``functools.wraps`` has copied it.

Cost: nothing is kept; some attributes are read and one signature is made.
"""

from __future__ import annotations

from collections.abc import Callable
import functools
import inspect
import types
from typing import Any

from jax._src.mend import jitted


def of(f: Callable) -> inspect.Signature:
  """The signature of `f` by which it can be called.

  Args:
    f: a callable.

  Returns:
    Its own signature.

  Raises:
    TypeError, ValueError: if it has none.
  """
  f = _passed_to(f)
  if isinstance(f, functools.partial):
    return inspect.signature(functools.partial(
        _with_signature(of(f.func)), *f.args, **f.keywords))
  if isinstance(f, types.MethodType):
    return inspect.signature(types.MethodType(
        _with_signature(of(f.__func__)), f.__self__))
  if isinstance(f, types.FunctionType):
    return _of_function(f)
  if inspect.isclass(f) or inspect.isbuiltin(f) or _states_its_own(f):
    return inspect.signature(f, follow_wrapped=False)
  its_call = type(f).__call__
  if isinstance(its_call, types.FunctionType) or jitted.is_jitted(its_call):
    return of(types.MethodType(its_call, f))
  return inspect.signature(f, follow_wrapped=False)


def _of_function(f: types.FunctionType) -> inspect.Signature:
  if _states_its_own(f) or not hasattr(f, '__signature__'):
    return inspect.signature(f, follow_wrapped=False)
  g = types.FunctionType(f.__code__, f.__globals__, f.__name__, f.__defaults__,
                         f.__closure__)
  g.__kwdefaults__ = f.__kwdefaults__
  return inspect.signature(g)


def _states_its_own(f: Any) -> bool:
  """True if somebody has set a signature, and ``wraps`` didn't copy it."""
  stated = getattr(f, '__dict__', {}).get('__signature__')
  copied = getattr(getattr(f, '__wrapped__', None), '__signature__', None)
  return stated is not None and stated is not copied


def _with_signature(signature: inspect.Signature) -> Callable:
  def stub(*args, **kwargs):
    del args, kwargs
  stated: Any = stub
  stated.__signature__ = signature
  return stated


def _passed_to(f: Any) -> Any:
  """Unwraps `f` to the function that gets all arguments of a call of it."""
  from jax._src import custom_derivatives  # pylint: disable=g-import-not-at-top
  while True:
    if isinstance(f, types.FunctionType) and jitted.passed_to(f) is not None:
      f = jitted.passed_to(f)
    elif jitted.is_jitted(f):
      its, f = f, getattr(f, '_fun', None)
      if f is None or f is not getattr(its, '__wrapped__', None):
        raise TypeError('a jitted function under the name of another')
    elif isinstance(f, (custom_derivatives.custom_jvp,
                        custom_derivatives.custom_vjp)):
      f = f.fun
    elif (isinstance(f, types.FunctionType) and f.__code__ in _transforms() and
          _holds(f, inner := getattr(f, '__wrapped__', None))):
      f = inner
    else:
      return f


def _holds(f: types.FunctionType, g: Any) -> bool:
  """True if `g` is among what `f`, or a function within it, closes over."""
  if g is None:
    return False
  functions, seen = [f], set()  # a function may close over itself
  while functions:
    f = functions.pop()
    seen.add(f)
    contents = [cell.cell_contents for cell in f.__closure__ or ()]
    if any(c is g for c in contents):
      return True
    functions += [c for c in contents
                  if isinstance(c, types.FunctionType) and c not in seen]
  return False


@functools.cache
def _transforms() -> frozenset[types.CodeType]:
  """The code of functions that JAX's transformations return."""
  # pylint: disable=g-import-not-at-top
  from jax._src import ad_checkpoint
  from jax._src import api
  transformed = [t(lambda x: x) for t in (
      ad_checkpoint.checkpoint, api.vmap, api.grad, api.value_and_grad,
      api.jacfwd, api.jacrev)]
  return frozenset(f.__code__ for f in transformed)
