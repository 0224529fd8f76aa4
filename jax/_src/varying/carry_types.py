# SPDX-License-Identifier: Apache-2.0
"""Types that upstream compares: of a carry before and after, of two branches.

A difference in varying axes alone is promoted later (``bind``), so where casts
can mend it the comparison is given the types that it expects.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src.mend import manual_axes
from jax._src.varying import reduced
from jax._src.varying import types as vt


def with_expected_axes(in_avals: Sequence[Any], out_avals: Sequence[Any]
                       ) -> Sequence[Any]:
  """The outputs' types, with the expected axes where casts can mend it.

  Upstream compares the types of a loop's carry, or of two branches' outputs,
  and refuses a difference. What differs in varying axes alone is promoted
  later, so that comparison shouldn't see it (and the weak-type promotion, that
  would trace the body once more, shouldn't either).

  Args:
    in_avals: the types that are expected.
    out_avals: the types to compare with them.

  Returns:
    ``out_avals``, with the axes of ``in_avals`` where promotion applies.
  """
  if not vt.checking():
    return out_avals
  return _with_expected_axes(in_avals, out_avals)


def _with_expected_axes(in_avals: Sequence[Any], out_avals: Sequence[Any]
                        ) -> Sequence[Any]:
  if len(in_avals) != len(out_avals):
    return out_avals
  mended = None
  for n, (a, b) in enumerate(zip(in_avals, out_avals)):
    if a is not b and vt.varying(a) != vt.varying(b):
      mended = mended or list(out_avals)
      mended[n] = _aval_with_expected_axes(a, b)
  return mended or out_avals


def aval_with_expected_axes(in_aval, out_aval):
  """One output's type, as ``with_expected_axes``."""
  if in_aval is out_aval or not vt.checking():
    return out_aval
  return _aval_with_expected_axes(in_aval, out_aval)


def _aval_with_expected_axes(in_aval, out_aval):
  a, b = vt.varying(in_aval), vt.varying(out_aval)
  if (a != b and vt.promotes_where_checked() and vt.castable(in_aval, a | b)
      and vt.castable(out_aval, a | b)
      and reduced.alike(in_aval, out_aval, a | b)):
    if manual_axes.reduced(in_aval) - b != manual_axes.reduced(in_aval):
      return manual_axes.with_axes_of(out_aval, in_aval)
    return vt.with_varying(out_aval, a)
  return out_aval


def tree_with_expected_axes(in_avals, out_avals):
  """The trees of types of later releases, as ``with_expected_axes``."""
  if not vt.checking():
    return out_avals
  # By iterators, which nobody asks for a length.
  expected, before = list(iter(in_avals)), list(iter(out_avals))
  if manual_axes.vary_alike(expected, before):  # mostly
    return out_avals
  mended = _with_expected_axes(expected, before)
  if mended is before:
    return out_avals
  if hasattr(out_avals, 'update_from_list'):  # its name up to 0.8.3
    return out_avals.update_from_list(mended)
  return out_avals.update(mended)
