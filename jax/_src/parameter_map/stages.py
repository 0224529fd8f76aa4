# SPDX-License-Identifier: Apache-2.0
"""``map`` and its companions on ``Lowered`` and ``Compiled``.

`of_lowered` puts together, from what a lowering kept for its own compilation,
the `ParameterMap` of its module. `Lowered` makes its map when it is first asked
for. `Compiled` gets it from the `Lowered` that it was compiled from, with the
module read out, so that an executable doesn't keep a module alive; the aliasing
of donated buffers, which XLA completes, is read off the executable on demand. A
`Compiled` that was loaded gets its map from `stored`; one that comes
from elsewhere has none and says so.

Cost of `Lowered.compile`: one pass over the results, and one over the
parameters if any is donated. Other uses of ``jit`` don't come through here.
"""

from __future__ import annotations

import bisect
import functools
from typing import Any

from jax._src import core
from jax._src.mend import pages
from jax._src.parameter_map import entry_function
from jax._src.parameter_map import stored
from jax._src.parameter_map.entries import Parameter
from jax._src.parameter_map.map import ParameterMap, ResultMap


def of_lowered(lowered: Any, api: str, read_donations: Any = None,
               read_forwarded: Any = None) -> ParameterMap:
  """Returns the map of a lowered function.

  Args:
    lowered: the ``Lowered``.
    api: the public class that is asked, for error messages.
    read_donations: returns the results' `Donations`; by default they are read
      off the module, on demand.
    read_forwarded: the same for the results that are parameters.

  Returns:
    The `ParameterMap`.

  Raises:
    ValueError: the parameters can't be told for certain.
  """
  lowering, in_tree = lowered._lowering, lowered.in_tree
  compile_args = _compile_args(lowering, api)
  module = lowering.stablehlo()
  main = entry_function.entry(module)
  all_avals = compile_args['all_args_info'].in_avals
  all_names = compile_args['all_args_info'].debug_info.arg_names
  if all_names is None or len(all_names) != len(all_avals):
    all_names = ('',) * len(all_avals)
  # In front of the arguments that the caller passes, all_avals has the
  # constants, then the values captured from an enclosing trace.
  offset = len(all_avals) - in_tree.num_leaves
  kept = sorted(compile_args['kept_var_idx'])
  first_arg = bisect.bisect_left(kept, offset)

  prefix = _prefix(compile_args, main)
  leading = [*prefix, *_captured(lowering, all_avals, kept[:first_arg],
                                 len(prefix))]
  mutation = compile_args['mut']
  results = ResultMap(
      lowered.out_tree, compile_args['global_out_avals'],
      len(compile_args['ordered_effects']), _updates(compile_args, len(prefix)),
      read_donations or functools.partial(_donations, lowering),
      read_forwarded or functools.partial(entry_function.forwarded, module))
  pmap = ParameterMap(
      lowered.args_info, in_tree, leading,
      [i - offset for i in kept[first_arg:]],
      list(mutation.in_mut) if mutation else [], all_avals[offset:],
      all_names[offset:], lowering._platforms, results, api,
      _takes_high_types(lowered))
  num_results = len(entry_function.returned(main))
  if len(pmap) != len(main.arguments) or len(results) != num_results:
    raise ValueError(
        f'{api}.parameter_map: expected {len(pmap)} parameters and '
        f'{len(results)} results, got a module with {len(main.arguments)} and '
        f'{num_results}. Lower with keep_unused=True, and feed every argument.'
        + pages.see('parameter_map.md#limits'))
  return pmap


def _prefix(compile_args: dict[str, Any], main: Any) -> list[Parameter]:
  """Returns the parameters that lowering adds: dimensions, then tokens."""
  state = compile_args['shape_poly_state']
  found: list[Parameter] = []
  for name in state.dim_vars if state else ():
    dtype = entry_function.integer_dtype(main.arguments[len(found)])
    # Asked for by the lowering itself, which puts this one first.
    platform = name == '_platform_index'
    found.append(Parameter(
        len(found), 'platform_index' if platform else 'dimension',
        core.ShapedArray((), dtype), name=None if platform else name))
  for effect in compile_args['ordered_effects']:
    found.append(Parameter(len(found), 'token', core.abstract_token,
                           name=str(effect)))
  return found


def _captured(lowering: Any, avals: Any, kept: list[int], first: int
              ) -> list[Parameter]:
  """Returns the parameters for constants, then those for captured values.

  Args:
    lowering: what `Lowered` holds.
    avals: the types of all arguments.
    kept: which of these are such parameters.
    first: the number of the first such parameter.
  """
  constants = list(getattr(lowering, 'const_args', ()))
  return [Parameter(n, 'constant', avals[i], value=constants[i])
          if i < len(constants) else Parameter(n, 'captured', avals[i])
          for n, i in enumerate(kept, first)]


def _updates(compile_args: dict[str, Any], first: int) -> list[int | None]:
  """Returns for each result the parameter that it updates, or None."""
  mutation = compile_args['mut']
  if not mutation:
    return [None] * len(compile_args['global_out_avals'])
  return [None if i is None else i + first for i in mutation.out_mut]


def _compile_args(lowering: Any, api: str) -> dict[str, Any]:
  """Returns what a lowering keeps of its arguments, if it is jit's."""
  kept = getattr(lowering, 'compile_args', {})
  if {'kept_var_idx', 'all_args_info', 'mut', 'global_out_avals'} <= set(kept):
    return kept
  raise ValueError(
      f"{api}.parameter_map: expected a function lowered by jax.jit, got a "
      f"{type(lowering).__name__}, which doesn't tell which arguments it kept. "
      "Lower jax.jit(jax.shard_map(...)) in place of jax.pmap." +
      pages.see('parameter_map.md#limits'))


def _takes_high_types(lowered: Any) -> bool:
  """Says whether an argument has a type that lowers to several arrays."""
  in_types = getattr(lowered, '_in_types', None)  # from JAX 0.10 on
  return in_types is not None and any(a.is_high for a in in_types[1])


def _donations(lowering: Any) -> entry_function.Donations:
  """Reads the donations of a lowering, if it can have any."""
  if lowering.compile_args['mut'] or any(lowering._donated_invars):
    return entry_function.donations(lowering.stablehlo())
  return entry_function.Donations({}, frozenset())


def _compiled_donations(donations: entry_function.Donations, executable: Any
                       ) -> entry_function.Donations:
  """Completes `donations` with the aliasing that XLA settled on."""
  if not donations.donors:
    return donations
  return donations._replace(
      aliases=entry_function.compiled_aliases(executable.as_text()))


def attach(compiled: Any, lowered: Any) -> Any:
  """Gives `compiled` the map of the `lowered` that it was compiled from.

  Whatever goes wrong here is reported when the map is asked for: compiling
  must work without one.

  Args:
    compiled: a new ``Compiled``.
    lowered: its ``Lowered``.

  Returns:
    `compiled`.
  """
  try:
    _compile_args(lowered._lowering, 'jax.stages.Compiled')
    donations = _donations(lowered._lowering)
    forwarded = entry_function.forwarded(lowered._lowering.stablehlo())
    compiled._parameter_map = of_lowered(
        lowered, 'jax.stages.Compiled', functools.partial(
            _compiled_donations, donations, compiled._executable),
        lambda: forwarded)
  except Exception as e:  # pylint: disable=broad-except
    compiled._parameter_map = e
  return compiled


def _map_of(stage: Any) -> ParameterMap:
  """Returns the map of a ``Lowered`` or ``Compiled``, making it if need be."""
  found = getattr(stage, '_parameter_map', None)
  if found is None and hasattr(stage, '_lowering'):
    found = stage._parameter_map = of_lowered(stage, 'jax.stages.Lowered')
  if found is None:
    found = stage._parameter_map = stored.of_loaded(stage)
  if found is None:
    raise ValueError(
        "jax.stages.Compiled.parameter_map: expected a Compiled returned by "
        "Lowered.compile or loaded from disk, got one from elsewhere, which "
        "doesn't tell which argument became which parameter. Lower the "
        "function again." +
        pages.see('parameter_map.md#limits'))
  if isinstance(found, Exception):
    raise ValueError(str(found)) from found
  return found


# From here on: what becomes members of Lowered and Compiled.


def parameter_values(self, /, *args, **kwargs) -> list[Any]:
  """Returns the values to feed to the entry computation.

  For runtimes that execute the module themselves. Takes what the function
  takes, static arguments left out, and returns a list with one value for each
  parameter, in the order of `map`: arguments as they were passed,
  except for those that no runtime can take (Python scalars and 64-bit NumPy
  arrays become NumPy arrays of the parameter's dtype, random keys their data,
  mutable arrays their contents); the values of constants and dimension
  variables; an empty ``bool`` array for a token.

  Args:
    *args: the function's positional arguments.
    **kwargs: its keyword arguments.

  Returns:
    The list of values.

  Raises:
    TypeError: the arguments don't have the structure, shapes and dtypes that
      the function was lowered for.
    ValueError: a parameter's value can't be known, or there is no map.
  """
  return _map_of(self).values(args, kwargs)


parameter_map = property(_map_of, doc="""\
A :class:`~jax.stages.ParameterMap`: what feeds each parameter of the entry
computation, in order.""")
result_map = property(lambda self: _map_of(self).results, doc="""\
A :class:`~jax.stages.ResultMap`: what each result of the entry computation is,
in order.""")
kept_var_idx = property(lambda self: _map_of(self).kept_var_idx, doc="""\
Which arguments are parameters: a sorted tuple of indices among the leaves of
``(args, kwargs)``.""")
