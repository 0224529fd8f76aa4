# SPDX-License-Identifier: Apache-2.0
"""The values to feed to a lowered module, from a function's own arguments.

`values` takes arguments as the function does, checks them against what the
function was lowered for, unused ones included, and returns one value for each
parameter of the entry computation. Nothing is copied: an array that already has
the right dtype is handed back itself. Only what no runtime can take as it is
gets converted: Python scalars, 64-bit NumPy arrays where JAX canonicalised them
to 32 bits, random keys (to their data), mutable arrays (to their contents) and
``float0`` arrays (to ``bool``).

An argument may be any object with a ``shape`` and a ``dtype`` that NumPy knows.
Everything wrong with the arguments is found before the first value is made.

Cost: a flattening and one comparison of shape and dtype for each argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax._src import api
from jax._src import core
from jax._src import dtypes
from jax._src import random
from jax._src import tree_util
from jax._src.export import shape_poly
from jax._src.mend import pages

_MAX_ERRORS = 5
_SCALARS = {
    bool: (np.dtype(bool),),
    int: (np.dtype(np.int32), np.dtype(np.int64)),
    float: (np.dtype(np.float32), np.dtype(np.float64)),
    complex: (np.dtype(np.complex64), np.dtype(np.complex128)),
}


def values(pmap: Any, args: tuple[Any, ...], kwargs: dict[str, Any],
           platform: str | None) -> list[Any]:
  """Returns a value for each parameter of `pmap`.

  Args:
    pmap: the `jax.stages.ParameterMap`.
    args: the positional arguments.
    kwargs: the keyword arguments.
    platform: the platform to run on, for a module lowered for several.

  Returns:
    The list of values, in the order of the parameters.

  Raises:
    TypeError: the arguments aren't what the function was lowered for.
    ValueError: a parameter's value can't be known.
  """
  flat, tree = tree_util.tree_flatten((args, kwargs))
  if pmap.takes_high_types:
    flat, tree = tree_util.tree_flatten(tree_util.tree_unflatten(
        tree, [core.typeof(x).lower_val(x) for x in flat]))
  _check_tree(pmap, tree)
  env = _check_avals(pmap, flat, tree)
  out = [_not_an_argument(pmap, p, env, platform) for p in pmap.leading]
  avals = pmap.in_avals
  out.extend([_to_feed(flat[i], avals[i]) for i in pmap.kept_var_idx])
  out.extend([_to_feed(ref, ref.aval) for ref in pmap.refs])
  return out


def _not_an_argument(pmap: Any, parameter: Any, env: dict[str, int],
                     platform: str | None) -> Any:
  """Returns the value of a parameter that the caller doesn't pass."""
  if parameter.kind == 'constant':
    return _to_feed(parameter.value, parameter.aval)
  if parameter.kind == 'token':
    return np.zeros((0,), np.dtype(bool))
  if parameter.kind == 'dimension':
    return np.asarray(env[parameter.name], parameter.aval.dtype)
  if parameter.kind == 'platform_index':
    return np.asarray(_platform_index(pmap, platform), parameter.aval.dtype)
  raise ValueError(
      f'{_api(pmap)}: expected every parameter to come from the '
      'arguments or from the lowered function, got parameter '
      f'{parameter.number}, which is a value of the enclosing trace that the '
      'function was lowered in. Lower the function outside of other '
      'transformations.' +
      pages.see('parameter_map.md#values'))


def _platform_index(pmap: Any, platform: str | None) -> int:
  """Returns the place of `platform` among those lowered for."""
  if platform is None:
    raise ValueError(
        f'{_api(pmap)}: the function was lowered for several platforms '
        f'{pmap.platforms}, and which one runs it is a parameter. Call '
        f'parameter_map.values(args, kwargs, platform={pmap.platforms[0]!r}).' +
        pages.see('parameter_map.md#values'))
  if platform not in pmap.platforms:
    raise ValueError(
        f'{_api(pmap)}: expected a platform among {pmap.platforms}, for which '
        f'the function was lowered, got {platform!r}. Lower it for that one '
        'with lowering_platforms.' +
        pages.see('parameter_map.md#values'))
  return pmap.platforms.index(platform)


def _check_tree(pmap: Any, tree: Any) -> None:
  """Raises unless `tree` is the structure that was lowered for."""
  if tree == pmap.in_tree:
    return
  errors = []
  for path, got, expected, why in tree_util.equality_errors_pytreedef(
      tree, pmap.in_tree):
    where = ('args', 'kwargs')[path[0].idx] if path else 'the arguments'
    where += tree_util.keystr(tuple(path[1:]))
    errors.append(f'at {where}, expected {expected}, got {got}: {why}')
  raise TypeError(
      f"{_api(pmap)}: the arguments don't have the structure that the function "
      "was lowered for:" + _listed(errors) + '\nPass the arguments that the '
      'function was lowered with, unused ones included and static ones left '
      'out.' +
      pages.see('parameter_map.md#values'))


def _check_avals(pmap: Any, flat: Sequence[Any], tree: Any) -> dict[str, int]:
  """Raises unless shapes and dtypes fit; returns the dimension variables."""
  expected = pmap.in_avals
  errors = []
  symbolic = False
  for i, (x, aval) in enumerate(zip(flat, expected)):
    aval = getattr(aval, 'inner_aval', aval)
    shape, dtype = _shape_and_dtype(x, aval)
    if shape == aval.shape and dtype == aval.dtype:
      continue
    if (shape is not None and dtype == aval.dtype and
        _could_be(shape, aval.shape)):
      symbolic = True
      continue
    got = (f"{_dtype_name(dtype)}[{','.join(map(str, shape))}]"
           if shape is not None else f'a value of type {type(x).__name__}')
    errors.append(
        f'{pmap.paths[i]}: expected {aval.str_short()}, got {got}')
  if errors:
    raise TypeError(
        f"{_api(pmap)}: the arguments don't have the types that the function "
        "was lowered for:" + _listed(errors) + '\nConvert the arguments, or '
        'lower the function again for them.' +
        pages.see('parameter_map.md#values'))
  if not symbolic:
    return {}
  return _solve(pmap, flat, tree)


def _dtype_name(dtype: Any) -> str:
  """Returns what a message calls `dtype`: also its byte order, if foreign."""
  if not isinstance(dtype, np.dtype):
    return str(dtype)
  if dtype.isnative:
    return dtype.name
  order = 'big' if dtype.str.startswith('>') else 'little'
  return f'{order}-endian {dtype.name}'


def _could_be(shape: Sequence[int], expected: Sequence[Any]) -> bool:
  """Says whether `shape` can be an instance of a symbolic shape."""
  return len(shape) == len(expected) and all(
      d == e or not core.is_constant_dim(e) for d, e in zip(shape, expected))


def _solve(pmap: Any, flat: Sequence[Any], tree: Any) -> dict[str, int]:
  """Returns the dimension variables that give the arguments' shapes."""
  avals = tuple(pmap.in_avals)
  solution, constraints, unknowns = shape_poly.solve_dim_vars(
      avals, args_kwargs_tree=tree)
  sizes: dict[str, Any] = {
      name: int(np.shape(flat[arg])[dim]) for name, arg, dim in unknowns}
  known = shape_poly.ShapeEvaluator(sizes)
  try:
    env: dict[str, Any] = {
        name: int(known.evaluate(dim)) for name, dim in solution.items()}
    constraints.check_statically(known)
    found = shape_poly.ShapeEvaluator(env)
    for i, (x, aval) in enumerate(zip(flat, avals)):
      want = tuple(int(found.evaluate(d)) for d in aval.shape)
      if want != np.shape(x):
        raise ValueError(f'{pmap.paths[i]}: expected {aval.str_short()}, which '
                         f'is {want} for {env}, got {np.shape(x)}')
  except ValueError as e:
    raise TypeError(
        f"{_api(pmap)}: the arguments don't have a shape that the function was "
        f"lowered for: {e}\nPass arguments whose dimensions agree." +
        pages.see('parameter_map.md#values')) from e
  return env


def _shape_and_dtype(x: Any, aval: Any) -> tuple[Any, Any]:
  """Returns shape and dtype of `x`, as JAX would take it for `aval`."""
  if type(x) in _SCALARS:
    fits = aval.dtype in _SCALARS[type(x)]
    return (), aval.dtype if fits else _SCALARS[type(x)][0]
  shape, dtype = getattr(x, 'shape', None), getattr(x, 'dtype', None)
  if (shape is None or dtype is None or
      isinstance(x, (core.Tracer, api.ShapeDtypeStruct))):
    return None, None  # no array, or none with a value to feed
  if not isinstance(dtype, np.dtype) and not dtypes.issubdtype(
      dtype, dtypes.extended):
    try:
      dtype = np.dtype(dtype)
    except TypeError:
      return tuple(shape), dtype
  # NumPy arrays of 64 bits are taken as 32 bits, unless x64 is enabled.
  if dtype != aval.dtype and isinstance(x, (np.ndarray, np.generic)):
    dtype = dtypes.canonicalize_dtype(dtype)
  return tuple(shape), dtype


def _to_feed(x: Any, aval: Any) -> Any:
  """Returns `x` in the form in which a runtime can take it."""
  if isinstance(x, np.ndarray) and x.dtype == aval.dtype != dtypes.float0:
    return x
  if hasattr(aval, 'inner_aval'):  # a mutable array
    return _to_feed(x[...], aval.inner_aval)
  if aval.dtype == dtypes.float0:
    return np.zeros(aval.shape, np.dtype(bool))
  if dtypes.issubdtype(aval.dtype, dtypes.prng_key):
    return random.key_data(x)
  if isinstance(x, (np.ndarray, np.generic)) or type(x) in _SCALARS:
    return np.asarray(x, aval.dtype)
  return x


def _api(pmap: Any) -> str:
  """Returns the name of the method that the user called."""
  return f'{pmap.api}.parameter_values'


def _listed(errors: Sequence[str]) -> str:
  """Returns the first few errors, one a line."""
  lines = [f'\n  {e}' for e in errors[:_MAX_ERRORS]]
  if len(errors) > _MAX_ERRORS:
    lines.append(f'\n  ... and {len(errors) - _MAX_ERRORS} more')
  return ''.join(lines)
