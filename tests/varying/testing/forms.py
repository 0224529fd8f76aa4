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
"""The table of forms, and what a form is written with.

A form is a function of one device's ``a`` (which varies over 'x'), ``b`` (over
'y'), ``c`` (over both) and ``w`` (over neither).
"""
import jax
from jax import lax
from varying.testing.common import axes_of
from varying.testing.common import cast


AX = ('x', 'y')
LATER = jax.__version_info__ >= (0, 7)
FORMS = {}
sharded_now = [True]  # not in the emulation


def vary(x, axes=AX):
  """``x``, cast to vary along ``axes``."""
  axes = tuple(a for a in axes if a not in axes_of(x))
  if not axes or not sharded_now[0]:
    return x
  return cast(x, axes)


def meet(x):
  """``x``, as a collective's operand, mapped over both axes."""
  if sharded_now[0]:
    return x
  return x + 0.0 * (lax.axis_index('x') + lax.axis_index('y'))


def form(claims, **options):
  """Puts a form in the table.

  Args:
    claims: the axes of each result, separated by commas.
    **options: ``rough``, it has no derivative; ``fwd=False``, no forward one;
      ``ref``, vmap with axis names can't emulate it.

  Returns:
    A decorator.
  """

  def put(f):
    FORMS[f.__name__] = (f, claims.split(','), options)
    return f

  return put
