# SPDX-License-Identifier: Apache-2.0
"""Maps from arguments to the parameters of a lowered module.

A function's arguments and the parameters of the module that it is lowered to
are not one to one. JAX drops the arguments that the function doesn't use, and
puts in front what the caller doesn't pass: dimension variables, the index of
the platform, tokens of ordered effects, constants. A runtime that executes the
module itself needs the correspondence in order to feed it (pytorch/xla#8794).

`ParameterMap` and `ResultMap` are that correspondence. They repeat what the
lowering decided and decide nothing themselves: the order (dimension variables,
tokens, constants, values captured from an enclosing trace, kept arguments,
captured references) is the one that the module's parameters were made in, and
a map whose length is not the module's number of parameters is refused rather
than returned.

Entries are built when they are asked for. A map itself costs a few tuples of
integers, and pytree paths are worked out on the first access to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any

from jax._src import core
from jax._src import tree_util
from jax._src.parameter_map import entry_function
from jax._src.parameter_map.entries import LazySequence, Parameter, Result


class ParameterMap(LazySequence):
  """One `Parameter` for each parameter of an entry computation, in order.

  Attributes:
    kept_var_idx: the indices of the arguments that are parameters, ascending,
      among the leaves of ``(args, kwargs)``.
    results: the `ResultMap` of the same computation.
    in_tree: the structure of ``(args, kwargs)``.
    in_avals: the aval of each argument, unused ones included.
    platforms: what the computation was lowered for.
    leading: the parameters in front of the arguments.
    refs: the mutable arrays whose contents are the parameters behind them.
    takes_high_types: whether an argument is a value of a user's own type
      (:mod:`jax.experimental.hijax`). Each argument then is, in `in_tree`, a
      list of the arrays that it is lowered to.
  """

  def __init__(self, args_info: Any, in_tree: Any, leading: Sequence[Parameter],
               kept: Sequence[int], refs: Sequence[Any], in_avals: Sequence,
               names: Sequence[str], platforms: Sequence[str],
               results: ResultMap, api: str, takes_high_types: bool = False):
    self.kept_var_idx = tuple(kept)
    self.results = results
    self.in_tree = in_tree
    self.in_avals = tuple(in_avals)
    self.platforms = tuple(platforms)
    self.api = api
    self.takes_high_types = takes_high_types
    self._args_info = args_info
    self.leading = tuple(leading)
    self.refs = tuple(refs)
    self._names = names

  def __len__(self) -> int:
    return len(self.leading) + len(self.kept_var_idx) + len(self.refs)

  def values(self, args: Sequence[Any], kwargs: dict[str, Any] | None = None,
             *, platform: str | None = None) -> list[Any]:
    """Returns what to feed; see :meth:`jax.stages.Lowered.parameter_values`.

    Args:
      args: the positional arguments, static ones left out.
      kwargs: the keyword arguments.
      platform: what the computation is to run on; needed only if it was lowered
        for several platforms.

    Returns:
      A list with a value for each parameter, in order.

    Raises:
      TypeError: the arguments don't have the structure, shapes and dtypes that
        the function was lowered for.
      ValueError: a parameter's value can't be known.
    """
    # It imports jax.stages.
    from jax._src.parameter_map import values as parameter_values
    return parameter_values.values(self, tuple(args), kwargs or {}, platform)

  def _entry(self, number: int) -> Parameter:
    donated = number in self.results.donations.donors
    position = number - len(self.leading)
    if position < 0:
      return dataclasses.replace(self.leading[number], donated=donated)
    if position >= len(self.kept_var_idx):
      ref = self.refs[position - len(self.kept_var_idx)]
      return Parameter(number, 'ref', ref.aval, donated=donated,
                       value=ref)
    arg = self.kept_var_idx[position]
    return Parameter(
        number, 'argument', self.in_avals[arg], arg_index=arg,
        path=self.paths[arg], donated=donated,
        name=self._names[arg] or None)

  @functools.cached_property
  def paths(self) -> Sequence[str]:
    """The path of each argument, unused ones included."""
    return argument_paths(self._args_info)


class ResultMap(LazySequence):
  """One `Result` for each result of an entry computation, in order."""

  def __init__(self, out_tree: Any, out_avals: Sequence, num_tokens: int,
               updates: Sequence[int | None],
               read_donations: Callable[[], entry_function.Donations],
               read_forwarded: Callable[[], dict[int, int]]):
    self._out_tree = out_tree
    self._out_avals = tuple(out_avals)
    self._num_tokens = num_tokens
    self._updates = tuple(updates)  # for each of out_avals
    self._read_donations = read_donations
    self._read_forwarded = read_forwarded

  def __len__(self) -> int:
    return self._num_tokens + len(self._out_avals)

  @functools.cached_property
  def donations(self) -> entry_function.Donations:
    """The results that the parameters' buffers are donated to."""
    return self._read_donations()

  @functools.cached_property
  def forwarded(self) -> dict[int, int]:
    """Result number to the number of the parameter handed through."""
    return self._read_forwarded()

  @functools.cached_property
  def _paths(self) -> list[str]:
    leaves = self._out_tree.unflatten(range(self._out_tree.num_leaves))
    return ['result' + tree_util.keystr(path) for path, _ in
            tree_util.tree_flatten_with_path(leaves)[0]]

  def _entry(self, number: int) -> Result:
    shared: dict[str, Any] = dict(
        forwarded_from=self.forwarded.get(number),
        aliases=self.donations.aliases.get(number))
    out = number - self._num_tokens
    if out < 0:
      return Result(number, 'token', core.abstract_token, **shared)
    if self._updates[out] is not None:
      return Result(number, 'ref', self._out_avals[out],
                    updates=self._updates[out], **shared)
    return Result(number, 'output', self._out_avals[out], out_index=out,
                  path=self._paths[out], **shared)


class _Paths(Sequence):
  """The paths of arguments, each spelled out when it is asked for."""

  def __init__(self, keys: Sequence[Any]):
    self._keys = keys

  def __len__(self) -> int:
    return len(self._keys)

  def __getitem__(self, index):
    which, *keys = self._keys[index]
    return ('args', 'kwargs')[which.idx] + tree_util.keystr(tuple(keys))


def argument_paths(args_and_kwargs: Any) -> Sequence[str]:
  """Returns the path of each leaf of a pair of arguments."""
  leaves, _ = tree_util.tree_flatten_with_path(args_and_kwargs)
  return _Paths([path for path, _ in leaves])
