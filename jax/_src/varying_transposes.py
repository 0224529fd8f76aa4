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
"""Transposes of sums and casts of several values, some without a cotangent.

In 0.6.0 ``psum`` of a pytree is one primitive with an operand for each leaf,
and so is the cast of one. Each is the other's transpose. Where a loss uses
some of the leaves only, the others' cotangents are symbolic zeros: those stay
symbolic here, and the rest is summed or cast. (Upstream binds them all, and
fails on the zeros.) Nothing changes where no cotangent is zero.
"""
from __future__ import annotations

from jax._src import core
from jax._src.interpreters import ad


def transpose_by(prim: core.Primitive, transposed: core.Primitive) -> None:
  """Makes ``transposed``, on the cotangents that aren't zero, the transpose.

  Args:
    prim: a primitive of several values, linear in each by itself.
    transposed: a primitive that takes the same parameters.
  """
  def rule(cts, *args, **params):
    known = [ct for ct in cts if type(ct) is not ad.Zero]
    results = iter(transposed.bind(*known, **params) if known else ())
    return [_zero(x) if type(ct) is ad.Zero else next(results)
            for ct, x in zip(cts, args)]

  ad.primitive_transposes[prim] = rule


def _zero(x):
  return ad.Zero(x.aval) if ad.is_undefined_primal(x) else None
