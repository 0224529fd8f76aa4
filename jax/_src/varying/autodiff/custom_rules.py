# SPDX-License-Identifier: Apache-2.0
"""Gives what custom derivative rules return the varying axes it must have.

Inside ``shard_map`` with the check on, types carry varying axes. A rule of
``custom_jvp`` or ``custom_vjp`` is written as plain mathematics and often
returns a value that does not vary where one that does is expected, such as a
constant slope, meant to be the same on every device. Three casts make such
rules work:

* ``custom_jvp``: each primal output and its tangent get the union of their
  axes, and those that the decorated function itself gives that output.
* ``custom_vjp`` forward: primal outputs get the axes that the decorated
  function gives them.
* ``custom_vjp`` backward: a cotangent with fewer axes than its input is cast,
  unless it was reduced over them on its way through the rule: a sum would be
  made twice then, and it is refused (`repeated_sums`).
  One with more is summed over them, as JAX does for a plain function, where
  the input is cast at its first use and the transpose of the cast is the sum.

A cotangent that nobody wants, because its input is a constant, is not summed:
where devices diverge the sum would be refused, and it is of no use.

Before, 0.6.0 accepted a backward rule's cotangent with too many axes and used
each device's part as if it were the sum.

With ``jax_custom_vjp3`` rules work on trees and are called elsewhere; the same
two casts are made there, leaf by leaf.

Limits: leaves whose shape differs are left to JAX's own checks. Cost: a type
look-up for each leaf; no operation at run time except the sum.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax._src import core
from jax._src import dtypes
from jax._src import linear_util as lu
from jax._src import tree_util
from jax._src.ad_util import SymbolicZero
from jax._src.varying import backward
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents as smc


def _type(x: Any) -> Any:
  """The type of an array or symbolic zero that a rule returned, or None."""
  aval = x.aval if type(x) is SymbolicZero else smc.array_type(x)
  if not isinstance(aval, core.ShapedArray) or aval.dtype == dtypes.float0:
    return None
  return aval


def _promote(x: Any, axes: frozenset) -> Any:
  if type(x) is SymbolicZero:
    return SymbolicZero(vt.with_varying(x.aval, axes))
  return vt.cast(x, axes)


def _declared(maybe_out_type: Callable[[], Any], n: int) -> Sequence[Any]:
  """The output types of the decorated function, Nones if it did not run."""
  try:
    avals = maybe_out_type()[1]
  except lu.StoreException:
    return [None] * n
  return avals if len(avals) == n else [None] * n


def match_jvp_outputs(
    primals: Sequence[Any], tangents: Sequence[Any],
    maybe_out_type: Callable[[], Any]) -> tuple[list[Any], list[Any]]:
  """Gives a JVP rule's primal outputs and their tangents the same axes.

  Args:
    primals: the first half of the rule's result, flat.
    tangents: the second half, flat; symbolic zeros are allowed.
    maybe_out_type: returns the tree and types of the decorated function's
      result, or raises `StoreException` if the function did not run.

  Returns:
    The primals and the tangents, cast where they lacked axes.
  """
  if len(primals) != len(tangents):
    return list(primals), list(tangents)  # refused next, with its own message
  new_primals, new_tangents = list(primals), list(tangents)
  declared = _declared(maybe_out_type, len(primals))
  for i, (p, t, d) in enumerate(zip(primals, tangents, declared)):
    p_type, t_type = _type(p), _type(t)
    if p_type is None:
      continue
    axes = vt.varying(p_type)
    if smc.comparable(p_type, d):
      axes |= vt.varying(d)
    if smc.comparable(p_type, t_type):
      axes |= vt.varying(t_type)
      new_tangents[i] = _promote(t, axes)
    new_primals[i] = _promote(p, axes)
  return new_primals, new_tangents


def as_expected(expected: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
  """The types of a JVP rule's tangents, for releases that want them equal.

  Until 0.7.1 a tangent that no mesh was entered for, of a constant from outside
  of ``shard_map``, is refused for a primal that was made inside; later ones
  compare what a type says of the values.

  Args:
    expected: the tangent types of the primal outputs.
    tangents: the types that the rule's tangents have.

  Returns:
    The expected types where they match, the others as they are.
  """
  return [e if core.typematch(e, t) else t
          for e, t in zip(expected, tangents)]


def match_fwd_outputs(primals: Sequence[Any],
                      maybe_out_type: Callable[[], Any]) -> list[Any]:
  """Gives a VJP forward rule's primal outputs the decorated function's axes.

  Args:
    primals: the first half of the rule's result, flat.
    maybe_out_type: as in `match_jvp_outputs`.

  Returns:
    The primals, cast where they lacked axes.
  """
  return [
      _promote(p, vt.varying(d)) if smc.comparable(_type(p), d) else p
      for p, d in zip(primals, _declared(maybe_out_type, len(primals)))]


def calling_for(call: Callable, flags: Sequence[bool],
                out_avals: Sequence[Any]) -> Callable:
  """A flat backward rule, called for some of its cotangents only.

  Args:
    call: the rule, or what a transformation has made of it.
    flags: for each primal input, whether its cotangent is wanted.
    out_avals: the types of the function's results when its forward rule was
      traced. It is called with a cotangent of each, the last of its arguments.

  Returns:
    A function of the same arguments and results; ``call`` outside of shard_map.
  """
  if not vt.checking():
    return call

  def with_flags(*args):
    cts = zip(reversed(args), reversed(out_avals))
    wider = any(vt.varying(_type(ct)) - vt.varying(aval) for ct, aval in cts)
    with backward.rule.running(wider, flags):
      return call(*args)
  return with_flags


def match_bwd_outputs(avals: Sequence[Any], cts: Sequence[Any]) -> list[Any]:
  """Gives a VJP backward rule's cotangents the axes of their inputs.

  Args:
    avals: the types of the inputs, flat.
    cts: what the rule returned for them, flat. What is not an array, such as
      the stand-in for None, is returned as it came.

  Returns:
    The cotangents, cast where they lacked axes and summed over those that the
    input does not vary along.
  """
  if smc.vary_alike(avals, cts):
    return list(cts)
  from jax._src.lax import parallel  # imports custom derivatives itself

  out = list(cts)
  flags = backward.rule.wants(len(out))
  for i, (aval, ct, wanted) in enumerate(zip(avals, cts, flags)):
    ct_type, expected_type = _type(ct), smc.cotangent_type(aval)
    if not smc.comparable(ct_type, expected_type):
      continue
    expected = vt.varying(aval)
    extra = vt.varying(ct_type) - expected
    if extra and not wanted:
      out[i] = SymbolicZero(expected_type)
    elif type(ct) is SymbolicZero:
      out[i] = _promote(ct, expected)
    else:
      if extra:
        ct = parallel.psum(ct, vt.ordered(extra))
      out[i] = _promote(ct, expected)
  return out


def match_fwd_tree(primals: Any, avals: Any) -> Any:
  """Gives a tree of primal outputs the axes that the function's have.

  Args:
    primals: what a forward rule returned.
    avals: a tree of the same structure: the types of the function's outputs.

  Returns:
    The primals, cast where they lacked axes.
  """
  return tree_util.tree_map(
      lambda aval, p: (_promote(p, vt.varying(aval))
                       if smc.comparable(_type(p), aval) else p),
      avals, primals)


def match_bwd_leaf(
    read: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
  """Lets what reads one cotangent of a backward rule match its axes too.

  Args:
    read: of an input's type and what the rule returned for it; returns the
      cotangent, or a zero.

  Returns:
    A function of the same arguments.
  """
  def match(aval, ct):
    return match_bwd_outputs([aval], [read(aval, ct)])[0]
  return match
