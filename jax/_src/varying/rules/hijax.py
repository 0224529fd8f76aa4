# SPDX-License-Identifier: Apache-2.0
"""Operations that hold their own types, at what their operands vary over.

Since 0.12 ``jnp.searchsorted``, ``nonzero``, ``ldexp`` and ``frexp``, and all
that is built on them, are equations of one primitive, whose parameter is an
object that says what the types of its operands and results are. Where an
operand is promoted in a loop or branch, the object is copied and given the new
types: its results vary over what its operands do. That is right for every
operation; one that holds traced functions or types besides (``custom_root``, a
user's own) makes a loop be traced again with its carry promoted.

``frexp`` describes its exponents as the same on all devices whatever they are
the exponents of; the types of those named here are corrected when they are
bound.

A traced function, ``jax.jit(f).trace(x)``, holds types too, and can be called
on values that vary over more axes than those it was traced with. It is then
re-typed.
"""
from __future__ import annotations

from collections.abc import Sequence
import copy
from typing import Any

from jax._src.mend import coarse
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import retype_values
from jax._src.varying import types as vt
from jax._src.varying.types import Axes


def at_axes(operation, ins: Sequence[Axes], outs: Sequence[Axes]):
  """A copy of the operation, whose operands and results vary over these.

  Args:
    operation: an application's description, with the types that it was made
      for.
    ins: what its operands vary over, flat.
    outs: what its results vary over, flat.

  Returns:
    The operation at those types.
  """
  new = copy.copy(operation)
  new.in_avals_flat = list(
      map(vt.with_varying, operation.in_avals_flat, ins))
  new.out_avals_flat = list(
      map(vt.with_varying, operation.out_avals_flat, outs))
  new.in_avals = operation.in_tree.unflatten(new.in_avals_flat)
  new.out_aval = operation.out_tree.unflatten(new.out_avals_flat)
  return new


def build(b, site: flow.Site) -> None:
  operation = at_axes(site.eqn.params['_prim'], site.operands, site.outs)
  retype.copy(b, site, _prim=operation)


def correct(prim: Any) -> None:
  """Lets the results of simple operations vary over what operands do."""
  bind = prim.bind

  def corrected(*args, _prim):
    if vt.checking() and type(_prim) in coarse.computing:
      ins = [vt.varying(a) for a in _prim.in_avals_flat]
      least = flow.union(ins)
      outs = [vt.varying(a) | least for a in _prim.out_avals_flat]
      if any(map(vt.Axes.__ne__, outs, map(vt.varying, _prim.out_avals_flat))):
        _prim = at_axes(_prim, ins, outs)
    return bind(*args, _prim=_prim)
  prim.bind = corrected


def bind_retyped_calls(prim: Any) -> None:
  """Re-types the jaxpr that ``prim`` calls where operands vary over more."""
  bind = prim.bind

  def bind_at_types(*args, call_jaxpr, **params):
    jaxpr, _, args = retype_values.retype_for_values(
        call_jaxpr, call_jaxpr.consts, args)
    return bind(*args, call_jaxpr=jaxpr, **params)
  prim.bind = bind_at_types


BUILDERS = {'call_hi_primitive': build}
