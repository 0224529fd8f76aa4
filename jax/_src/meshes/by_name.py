# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments: ``shard_map``, ``smap``, ``auto_axes``, ``explicit_axes``.

A keyword argument has the spec that the parameter of its name would have: of a
tuple of specs the one at the parameter's position, of a dictionary the one
under its name. A dictionary may name the positional parameters, too. A spec
that is no such container counts for all arguments, as for positional ones.
Names and positions are those by which the function itself is called, whatever
it wraps (`own_signature`): a decorator may pass on more than it takes, and what
takes ``*args, **kwargs`` has no position for a name. A dictionary of specs is
right for it, with all arguments by keyword; else it is refused.

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
from jax._src.mend import pages
from jax._src.mend import traces
from jax._src import tree_util
from jax._src.meshes import own_signature
from jax._src.partition_spec import PartitionSpec as P
from jax._src.util import fun_name, wraps

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
  given = _Parameters(api, f)
  given.check_keywords(kwargs)
  if type(specs) is dict:
    return _by_name(given, args, kwargs, specs)
  by_name = given.both_ways(specs)
  positional = type(specs)(specs[:len(args)]) if kwargs else specs
  return positional, {n: given.find(by_name, n) for n in kwargs}


def _by_name(given: _Parameters, args: tuple, kwargs: dict[str, Any], specs):
  """``match``, of a dictionary of specs."""
  names: list[str | None] = [*given.names[:len(args)]]
  names += [given.rest] * (len(args) - len(names))
  if not given.others and (strange := sorted(set(specs) - given.all)):
    raise TypeError(
        f'{given.api} got specs by name. Expected: names of parameters of '
        f'{given.f}. Got: {strange}. Remove or rename these.' +
        pages.see('meshes.md#keyword-arguments'))
  if twice := sorted(set(kwargs) & set(filter(None, names))):
    raise TypeError(
        f'{given.api} got specs by name. Expected: one argument of each name. '
        f'Got: {twice} of {given.f} by position and by keyword. Pass the specs '
        'as a tuple, or rename these.' +
        pages.see('meshes.md#keyword-arguments'))
  return (tuple(given.find(specs, n) for n in names),
          {n: given.find(specs, n) for n in kwargs})


class _Parameters:
  """The parameters of a function, by its own signature.

  Attributes:
    api: the public function's name, for errors.
    f: the function as errors show it.
    names: those that can be passed by position, in order.
    rest: the name of ``*args``, or None.
    others: whether there is a ``**kwargs``.
    all: the names of all of them.
  """

  def __init__(self, api: str, f: Callable):
    self.api = api
    try:
      signature = own_signature.of(f)
    except (TypeError, ValueError):
      raise TypeError(
          f'{api} matches specs by name. Expected: a function with a signature '
          f'of its own. Got: {fun_name(f)}. Wrap it in one that names its '
          'parameters.' +
          pages.see('meshes.md#keyword-arguments')) from None
    parameters = signature.parameters.values()
    kinds = {p.kind: p.name for p in parameters}
    self.f = fun_name(f) + _shown(signature)
    self.names = [p.name for p in parameters if p.kind in _BY_POSITION]
    self.rest = kinds.get(inspect.Parameter.VAR_POSITIONAL)
    self.others = inspect.Parameter.VAR_KEYWORD in kinds
    self.all = set(signature.parameters)
    self._only = {p.name for p in parameters
                  if p.kind is inspect.Parameter.POSITIONAL_ONLY}
    self._by_keyword = {
        p.name for p in parameters if p.kind in (
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            inspect.Parameter.KEYWORD_ONLY)}

  def check_keywords(self, kwargs: dict[str, Any]) -> None:
    """Refuses keywords that are no parameter's.

    Raises:
      TypeError: if one is.
    """
    strange = sorted(kwargs.keys() - self._by_keyword)
    if strange and not self.others:
      raise TypeError(
          f'{self.api} got arguments by keyword that {self.f} has no parameter '
          f'for. Expected: names among {sorted(self._by_keyword)}. Got: '
          f'{strange}. Rename or remove these, or give the function parameters '
          'of these names.' +
          pages.see('meshes.md#keyword-arguments'))

  def both_ways(self, specs) -> dict[str, Any]:
    """Specs by position, under the names that keywords can have, too."""
    return {name: spec for name, spec in zip(self.names, specs)
            if name not in self._only}

  def find(self, specs: dict[str, Any], name: str | None):
    """The spec of that name.

    Raises:
      TypeError: if there is none.
    """
    if name not in specs:
      raise TypeError(
          f"{self.api} got an argument without a spec. Expected: a spec for "
          f"the parameter '{name}' of {self.f}. Got: specs for "
          f'{sorted(map(str, specs))}. Pass all arguments by keyword and a '
          f"dictionary of specs by name, such as {{'{name}': "
          'PartitionSpec()}.' +
          pages.see('meshes.md#keyword-arguments'))
    return specs[name]


def _shown(signature: inspect.Signature) -> str:
  empty = inspect.Parameter.empty
  return str(inspect.Signature([
      p.replace(annotation=empty, default=empty)
      for p in signature.parameters.values()]))


def keywords_inside(kwargs: dict[str, Any], convert: Callable, mesh
                    ) -> dict[str, Any]:
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
        traces.typeof(x).sharding.spec, mesh))
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
  """True if this is an array over the same axes, of other types."""
  if not isinstance(x, (core.Tracer, basearray.Array)):
    return False
  its = getattr(getattr(traces.typeof(x), 'sharding', None), 'mesh', None)
  return (its is not None and not its.empty and
          getattr(its, 'abstract_mesh', its) != mesh and
          its.axis_names == mesh.axis_names)
