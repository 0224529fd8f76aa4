# SPDX-License-Identifier: Apache-2.0
"""Cotangents of ``linear_call`` that vary where its linear operand doesn't.

The function of a ``linear_call`` may read something that varies, a residual or
a captured value, and be linear in something that doesn't. The function that the
user gave as its transpose knows nothing of devices: each of them gives its own
part of the operand's cotangent, which is their sum. Of a plain function the sum
is the transpose of the cast that the operand meets; there is no such cast in a
transpose that the user wrote, so the sum is made here, after it.

The transpose is linear in its cotangent in turn, whose transpose is the
function again. It was traced for an operand that doesn't vary, and is given one
that does, by the cast that the sum is transposed to: so it is typed again.

Limits: a cotangent that varies over fewer axes than its operand is left to
JAX's own check. Who wrote ``psum`` in a transpose, as one did for ``pmap``,
would get a multiple if it were cast.

Cost: a look at each cotangent's type; the sum.
"""
from __future__ import annotations

from jax._src import core
from jax._src.interpreters import ad
from jax._src.varying import types as vt
from jax._src.varying.autodiff import cotangents


def sum_over_devices(linear_call_p: core.Primitive) -> None:
  """Has the transpose sum a cotangent over what its operand doesn't vary over.

  Args:
    linear_call_p: the primitive, whose transpose rule is defined.
  """
  rule = ad.primitive_transposes[linear_call_p]

  def transpose(cts, /, *args, **params):
    out = rule(cts, *args, **params)
    if not vt.checking():
      return out
    return [_summed(ct, x.aval) if ad.is_undefined_primal(x) else ct
            for ct, x in zip(out, args)]

  ad.primitive_transposes[linear_call_p] = transpose


def _summed(ct, aval):
  """A cotangent, of the type of an operand's."""
  found = cotangents.array_type(ct)
  if not cotangents.comparable(found, cotangents.cotangent_type(aval)):
    return ct
  extra = vt.varying(found) - vt.varying(aval)
  if not extra:
    return ct
  from jax._src.lax import parallel  # imports custom derivatives itself
  return parallel.psum(ct, vt.ordered(extra))
