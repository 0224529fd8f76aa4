# SPDX-License-Identifier: Apache-2.0
"""The maps of what comes from a file: executables and exported functions.

A loaded executable keeps, of its arguments, what it needs to be called: which
of them are parameters, and all avals. No leading parameter can be
stored (constants, tokens and references are refused when it is), so that is all
of a `ParameterMap`. What is donated is read off the machine code, on demand.
Which results are parameters handed through isn't kept: `forwarded_from` of a
loaded executable is None.

An exported function's module says itself what is in front of its arguments: the
index of the platform, and the tokens of ordered effects. Its dimension
variables are no parameters: the module works them out of its arguments.

Cost: for an executable none; an exported module is read once, at each access.
"""

from __future__ import annotations

from typing import Any

from jax._src import core
from jax._src.parameter_map import entry_function
from jax._src import tree_util
from jax._src.lib.mlir import ir
from jax._src.mend import pages
from jax._src.parameter_map.entries import Parameter
from jax._src.parameter_map.map import ParameterMap, ResultMap


def of_loaded(compiled: Any) -> ParameterMap | None:
  """Returns the map of an executable that was loaded, or None.

  Args:
    compiled: a ``Compiled``.

  Returns:
    The `ParameterMap`; None for an executable that doesn't keep what it takes.
  """
  kept_by: Any = getattr(compiled._executable, '_unloaded_executable', None)
  info = getattr(kept_by, 'all_args_info', None)
  if (info is None or kept_by.mut or kept_by.ordered_effects or
      len(info.in_avals) != compiled.in_tree.num_leaves):
    return None
  kept = sorted(kept_by.kept_var_idx)
  if len(kept_by.input_avals) != len(kept):
    return None
  executable = compiled._executable
  is_donated = any(leaf.donated for leaf in tree_util.tree_leaves(
      compiled.args_info, is_leaf=lambda x: hasattr(x, 'donated')))

  def donations():
    aliases = entry_function.compiled_aliases(
        executable.as_text()) if is_donated else {}
    return entry_function.Donations(aliases, frozenset(aliases.values()))
  results = ResultMap(
      compiled.out_tree, kept_by.output_avals, 0,
      [None] * len(kept_by.output_avals), donations, lambda: {})
  names = info.debug_info.arg_names
  if names is None or len(names) != len(info.in_avals):
    names = ('',) * len(info.in_avals)
  return ParameterMap(
      compiled.args_info, compiled.in_tree, (), kept, (), info.in_avals, names,
      (kept_by.backend.platform,), results, 'jax.stages.Compiled')


def of_exported(exported: Any) -> ParameterMap:
  """Returns the map of an exported function's module.

  Args:
    exported: the ``jax.export.Exported``.

  Returns:
    The `ParameterMap`.

  Raises:
    ValueError: the module has other parameters than its arguments account for.
  """
  # pylint: disable-next=g-import-not-at-top
  from jax._src.interpreters import mlir
  with mlir.make_ir_context():
    module = ir.Module.parse(exported.mlir_module())
    main = entry_function.entry(module)
    given, returned = len(main.arguments), len(entry_function.returned(main))
    donations = entry_function.donations(module)
    forwarded = entry_function.forwarded(module)
  leading: list[Parameter] = []
  tokens = exported.ordered_effects
  kept = exported.module_kept_var_idx
  if given > len(tokens) + len(kept) and len(exported.platforms) > 1:
    leading.append(Parameter(0, 'platform_index', core.ShapedArray(
        (), entry_function.integer_dtype(main.arguments[0]))))
  for effect in tokens:
    leading.append(Parameter(len(leading), 'token', core.abstract_token,
                             name=str(effect)))
  results = ResultMap(
      exported.out_tree, exported.out_avals, len(tokens),
      [None] * len(exported.out_avals), lambda: donations, lambda: forwarded)
  arguments = exported.in_tree.unflatten(range(exported.in_tree.num_leaves))
  pmap = ParameterMap(
      arguments, exported.in_tree, leading, kept, (), exported.in_avals,
      ('',) * len(exported.in_avals), exported.platforms, results,
      'jax.export.Exported')
  if len(pmap) != given or len(results) != returned:
    raise ValueError(
        f'jax.export.Exported.parameter_map: expected {len(pmap)} parameters '
        f'and {len(results)} results, got a module with {given} and {returned}.'
        ' Export the function again.' +
        pages.see('parameter_map.md#from-a-file'))
  return pmap


# From here on: what becomes members of Exported.


def parameter_values(self, /, *args, **kwargs) -> list[Any]:
  """Returns the values to feed to the module's entry computation.

  As :meth:`jax.stages.Lowered.parameter_values`. With several platforms, call
  ``parameter_map.values(args, kwargs, platform=...)``.

  Args:
    *args: the function's positional arguments.
    **kwargs: its keyword arguments.

  Returns:
    The list of values.

  Raises:
    TypeError: the arguments don't have the structure, shapes and dtypes that
      the function was exported for.
    ValueError: a parameter's value can't be known.
  """
  return of_exported(self).values(args, kwargs)


parameter_map = property(of_exported, doc="""\
A :class:`~jax.stages.ParameterMap`: what feeds each parameter of the module,
in order.""")
result_map = property(lambda self: of_exported(self).results, doc="""\
A :class:`~jax.stages.ResultMap`: what each result of the module is, in order.
""")
