# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Keyword arguments: ``shard_map``, ``smap``, ``auto_axes``, ``explicit_axes``.

A keyword argument has the spec that the parameter of its name would have: of a
tuple of specs the one at the parameter's position, of a dictionary the one
under its name. A dictionary may name the positional parameters, too. A spec
that is no such container counts for all arguments, as for positional ones.

For ``shard_map`` the function becomes one of two arguments, the positional ones
and the dictionary of the others, with specs of that form. ``auto_axes`` and
``explicit_axes`` change the types of arrays; what else is among the keyword
arguments (numbers, strings, NumPy arrays) is passed on as it is.

Cost: nothing without keyword arguments.
"""
from __future__ import annotations

from collections.abc import Callable
import inspect
from typing import Any

from jax._src import basearray
from jax._src import core
from jax._src import tree_util
from jax._src.partition_spec import PartitionSpec as P
from jax._src.util import fun_name, wraps

_typeof = getattr(core, 'typeof', None) or core.get_aval
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY,
                inspect.Parameter.POSITIONAL_OR_KEYWORD)


def call(api: str, f: Callable, args: tuple, kwargs: dict[str, Any], specs,
         mapped: Callable):
  """Calls a mapped function with keyword arguments.

  Args:
    api: the public function's name, for errors.
    f: the function that is mapped.
    args: its positional arguments.
    kwargs: its keyword arguments.
    specs: in_specs.
    mapped: makes the mapped function, of another function and in_specs.

  Returns:
    The result.

  Raises:
    TypeError: if an argument has no spec, or a spec's name is no parameter's.
  """
  def of_two(args, kwargs):
    return f(*args, **kwargs)
  of_two.__name__ = of_two.__qualname__ = fun_name(f)
  return mapped(of_two, match(api, f, args, kwargs, specs))(args, kwargs)


def smap(f: Callable, axes: dict[str, Any], mapped: Callable) -> Callable:
  """A function mapped by ``smap`` with axes by name.

  Args:
    f: the function that is mapped.
    axes: in_axes.
    mapped: makes the mapped function, of another function and in_axes.

  Returns:
    The mapped function.
  """
  mapped(f, tuple(axes.values()))  # checks them
  @wraps(f)
  def wrapped(*args, **kwargs):
    return call('smap', f, args, kwargs, axes, mapped)
  return wrapped


def match(api: str, f: Callable, args: tuple, kwargs: dict[str, Any], specs):
  """The specs of the positional arguments, and those of the others.

  Args:
    api: the public function's name, for errors.
    f: the function that is called.
    args: its positional arguments.
    kwargs: its keyword arguments.
    specs: a tuple of specs by position, a dictionary by name, or a spec of all.

  Returns:
    A tuple and a dictionary, or the spec of all.

  Raises:
    TypeError: if an argument has no spec, or a spec's name is no parameter's.
  """
  if type(specs) not in (tuple, list, dict):
    return specs
  names, rest, others = _parameters(api, f)
  if type(specs) is dict:
    given = [*names[:len(args)], *[rest] * (len(args) - len(names))]
    known = {*names, rest, *kwargs} if others else {*names, rest}
    known |= _keyword_only(f)
    if strange := sorted(set(specs) - known):
      raise TypeError(
          f'{api} got specs by name. Expected: names of parameters of '
          f'{fun_name(f)}. Got: {strange}. Remove or rename these.')
    by_name = specs
    positional = tuple(_find(api, f, specs, n) for n in given)
  else:
    by_name = dict(zip(names, specs))
    positional = type(specs)(specs[:len(args)]) if kwargs else specs
  return positional, {n: _find(api, f, by_name, n) for n in kwargs}


def _parameters(api: str, f: Callable) -> tuple:
  """Names by position, of ``*args``, and whether there is a ``**kwargs``."""
  try:
    parameters = inspect.signature(f).parameters.values()
  except (TypeError, ValueError):
    raise TypeError(
        f'{api} matches specs by name. Expected: a function with a signature. '
        f'Got: {fun_name(f)}. Wrap it in one that names its parameters.'
    ) from None
  kinds = {p.kind: p.name for p in parameters}
  return ([p.name for p in parameters if p.kind in _BY_POSITION],
          kinds.get(inspect.Parameter.VAR_POSITIONAL),
          inspect.Parameter.VAR_KEYWORD in kinds)


def _keyword_only(f: Callable) -> set[str]:
  parameters = inspect.signature(f).parameters.values()
  return {p.name for p in parameters if p.kind not in _BY_POSITION}


def _find(api: str, f: Callable, specs: dict[str, Any], name: str | None):
  if name not in specs:
    raise TypeError(
        f'{api} got an argument without a spec. Expected: a spec for the '
        f"parameter '{name}' of {fun_name(f)}. Got: specs for "
        f'{sorted(map(str, specs))}. Pass a dictionary of specs by name, such '
        f"as {{'{name}': PartitionSpec()}}.")
  return specs[name]


def cast(kwargs: dict[str, Any], convert: Callable, mesh) -> dict[str, Any]:
  """Keyword arguments of ``auto_axes`` as they are inside.

  Args:
    kwargs: the arguments.
    convert: changes the sharding of an array.
    mesh: the mesh inside.

  Returns:
    The arguments, arrays over the mesh outside converted.
  """
  def one(x):
    if not _is_outside(x, mesh):
      return x
    return convert(x, core.modify_spec_for_auto_manual(
        _typeof(x).sharding.spec, mesh))
  return {name: tree_util.tree_map(one, value) if _any(value, mesh) else value
          for name, value in kwargs.items()}


def explicit(f: Callable, args: tuple, kwargs: dict[str, Any], specs,
             convert: Callable, mesh) -> tuple:
  """Specs of positional arguments of ``explicit_axes``, and the others.

  Args:
    f: the function that is called.
    args: its positional arguments.
    kwargs: its keyword arguments.
    specs: in_sharding.
    convert: changes the sharding of arrays.
    mesh: the mesh inside.

  Returns:
    The specs of `args`, and the keyword arguments as they are inside.
  """
  arrays = {name: value for name, value in kwargs.items() if _any(value, mesh)}
  if not arrays and type(specs) is not dict:
    return specs, kwargs
  matched = match('explicit_axes', f, args, arrays, specs)
  positional, by_name = (
      matched if type(specs) in (tuple, list, dict) else
      (matched, dict.fromkeys(arrays, matched)))
  inside = {name: _each(convert, value, by_name[name], mesh)
            for name, value in arrays.items()}
  return positional, {**kwargs, **inside}


def _each(convert, value, spec, mesh):
  """The arrays of a tree converted, each by its part of the spec."""
  leaves, tree = tree_util.tree_flatten(value)
  is_spec = lambda s: s is None or isinstance(s, P)
  specs = tree_util.broadcast_prefix(spec, value, is_leaf=is_spec)
  return tree.unflatten(convert(x, s) if _is_outside(x, mesh) else x
                        for x, s in zip(leaves, specs))


def _any(value, mesh) -> bool:
  return any(_is_outside(x, mesh) for x in tree_util.tree_leaves(value))


def _is_outside(x, mesh) -> bool:
  """Whether this is an array over the same axes, of other types."""
  if not isinstance(x, (core.Tracer, basearray.Array)):
    return False
  its = getattr(getattr(_typeof(x), 'sharding', None), 'mesh', None)
  return (its is not None and not its.empty and
          getattr(its, 'abstract_mesh', its) != mesh and
          its.axis_names == mesh.axis_names)
