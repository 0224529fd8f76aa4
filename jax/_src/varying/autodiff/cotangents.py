# SPDX-License-Identifier: Apache-2.0
"""Gives tangents and cotangents the varying axes of the values they belong to.

Inside ``shard_map`` with the check on, a value's type says along which mesh
axes it may differ between devices. A tangent or cotangent has the type of its
primal value, axes included, so ``jnp.ones(())`` or ``1.0`` is not the right
type for a loss that varies (jax#28193). Using a replicated value where a
varying one is expected is always right, so it is cast (``pvary``, nothing at
run time). The reverse is for a tangent what it says, a direction for each
device; for a cotangent it is a mistake that only the caller can resolve, by a
sum over devices or by letting the output vary, so it is refused, naming both.

Shape and dtype are left to the checks of the caller, which run afterwards.

Limits: only arrays are cast; mutable references, tokens and values with
unreduced or reduced axes are left alone. Outside ``shard_map``, and with the
check off, no type has varying axes and everything is returned as it came.
Cost: one type look-up for each leaf.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src import core
from jax._src import dtypes
from jax._src.mend import manual_axes
from jax._src.mend import pages
from jax._src import tree_util
from jax._src.ad_util import SymbolicZero, Zero
from jax._src.mend import release_types
from jax._src.mend import releases
from jax._src.varying import types as vt


def _other_axes(aval: Any) -> Any:
  return manual_axes.unreduced(aval), manual_axes.reduced(aval)


def cotangent_type(aval: Any) -> Any:
  """Returns the type of a cotangent of a value of type `aval`."""
  return (aval.to_ct_aval() if release_types.types_have_cotangents()
          else aval.to_tangent_aval())


def array_type(x: Any) -> Any:
  """Returns the type of `x` if it is an array or a number, otherwise None."""
  if isinstance(x, Zero):
    return None
  try:
    aval = vt.typeof(x)
  except TypeError:
    return None
  return aval if isinstance(aval, core.ShapedArray) else None


def comparable(a: Any, b: Any) -> bool:
  """Says whether two array types differ at most in dtype and varying axes."""
  return (isinstance(a, core.ShapedArray) and isinstance(b, core.ShapedArray)
          and core.definitely_equal_shape(a.shape, b.shape)
          and _other_axes(a) == _other_axes(b))


def vary_alike(avals: Sequence[Any], cts: Sequence[Any]) -> bool:
  """Says, in the fewest steps, whether traced cotangents need no look at them.

  Args:
    avals: the types of the values that they belong to.
    cts: what a backward rule returned, flat, stand-ins for None included.
  """
  for aval, ct in zip(avals, cts):
    if isinstance(ct, core.Tracer):
      if vt.varying(ct.aval) != vt.varying(aval):
        return False
    elif type(ct) is not object and (
        type(ct) is SymbolicZero or vt.varying(aval)):
      return False
  return True


def axes_text(axes: frozenset) -> str:
  """Formats axes for a message: "mesh axis 'x'", "mesh axes 'x' and 'y'"."""
  names = [repr(a) for a in vt.ordered(axes)]
  if len(names) == 1:
    return f'mesh axis {names[0]}'
  return f"mesh axes {', '.join(names[:-1])} and {names[-1]}"


def cast_text(what: str, axes: frozenset) -> str:
  """Formats the call that makes `what` vary along `axes` on this release."""
  return f'`{releases.varying_cast(what, vt.ordered(axes))}`'


def _path(tree: Any, i: int) -> str:
  if tree is None:
    return ''
  leaves = tree_util.tree_unflatten(tree, range(tree.num_leaves))
  return tree_util.keystr(tree_util.tree_flatten_with_path(leaves)[0][i][0])


def match_cotangents(
    api_name: str, error: type[Exception], cts: Sequence[Any],
    avals: Sequence[Any], tree: Any = None) -> tuple[list[Any], list[Any]]:
  """Gives each cotangent the varying axes of the output that it belongs to.

  Args:
    api_name: the public function whose result was called, for messages.
    error: the class of the error for a cotangent that varies too much.
    cts: the cotangents, flat.
    avals: the types of the outputs that they belong to.
    tree: the tree structure of the outputs, for messages.

  Returns:
    The cotangents, cast where they lacked axes, and the types to check them
    against: `avals`, without varying axes where the cotangent is a float0
    array, for which no cast exists and no device could differ.

  Raises:
    error: if a cotangent varies along an axis along which its output does not.
  """
  new_cts, new_avals = list(cts), list(avals)
  for i, (ct, aval) in enumerate(zip(cts, avals)):
    expected = vt.varying(aval)
    got_type = array_type(ct)
    if got_type is None or not comparable(got_type, cotangent_type(aval)):
      continue
    got = vt.varying(got_type)
    if got == expected:
      continue
    if got_type.dtype == dtypes.float0:
      new_avals[i] = vt.with_varying(aval, got)
    elif got < expected:
      new_cts[i] = vt.cast(ct, expected)
    else:
      raise error(refusal(api_name, got_type, aval, _path(tree, i)))
  return new_cts, new_avals


def refusal(api_name: str, got_type: Any, aval: Any, path: str = '') -> str:
  """Formats the refusal of a cotangent that varies where its output doesn't."""
  extra = vt.varying(got_type) - vt.varying(aval)
  return (
      f'{api_name}: unexpected JAX type for the cotangent{path}: got'
      f' {got_type.str_short()}, but expected'
      f' {cotangent_type(aval).str_short()}, the type of the corresponding'
      f' output. The cotangent varies over {axes_text(extra)} and the'
      ' output does not. To add up what the devices have, apply'
      f' `jax.lax.psum(ct, {vt.ordered(extra)})` to the cotangent; to'
      ' let each device have its own, apply'
      f" {cast_text('out', extra)} to the output of the function"
      f'{_at_the_primal(api_name, extra)}.' +
      pages.see('differentiation.md#what-stays-an-error'))


def _at_the_primal(api_name: str, axes: frozenset) -> str:
  if api_name != 'jax.linear_transpose':
    return ''
  return (f", or {cast_text('primal', axes)} to the primal values that"
          f' {api_name} (and `jax.linearize`, if it made the function) is'
          ' given: what is computed from them varies then, and so does the'
          ' result')


def match_tangents(tangents: Sequence[Any],
                   avals: Sequence[Any]) -> list[Any]:
  """Gives each tangent at least the varying axes of its primal.

  A tangent may vary along more axes than its primal, as in `jax.jvp`: a
  direction for each device, at a point that all share. What is linear is typed
  by the tangents when it is evaluated (`retype_values.retype_for_values`).

  Args:
    tangents: the tangents, flat.
    avals: the types of the primal values that they belong to.

  Returns:
    The tangents, cast where they lacked axes.
  """
  out = list(tangents)
  for i, (t, aval) in enumerate(zip(tangents, avals)):
    got_type = array_type(t)
    if (got_type is not None and got_type.dtype != dtypes.float0
        and comparable(got_type, aval.to_tangent_aval())):
      out[i] = vt.cast(t, vt.varying(aval))
  return out


def types_to_check(tangent_avals: Sequence[Any],
                   avals: Sequence[Any]) -> Sequence[Any]:
  """The tangents' types, to be checked for everything but varying axes.

  Args:
    tangent_avals: the types of what `match_tangents` returned.
    avals: the types of the primal values.

  Returns:
    The types, with the varying axes of the primals where these are all that may
    differ.
  """
  return [
      vt.with_varying(t, vt.varying(p))
      if comparable(t, p.to_tangent_aval()) else t
      for t, p in zip(tangent_avals, avals)]
