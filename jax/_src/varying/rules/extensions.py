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
"""What varies about the results of primitives that other libraries define.

A library that adds a primitive (``jax.extend.core.Primitive``) writes an
abstract evaluation rule for shapes and dtypes, mostly without a thought for
``shard_map``. equinox's ``unvmap_any``, the predicate of its loops, gives a
plain ``bool[]``: with the check on, each device's own answer then counts as
the same on all, and loops, branches and gradients that depend on it are wrong.

So a rule that was not defined in the package ``jax`` gets the least rule of
``primitives``: its results vary wherever an operand does, and operands
that vary differently are cast first, which makes gradients right as well.

Limits: a primitive of another library that does make its results the same on
all devices has to say so by a reduction of JAX's own (``lax.pmax``) after it.
Cost: one look at the name of the rule's module when a primitive is defined.
"""
from __future__ import annotations

from collections.abc import Callable
import functools



def type_by_operands(prim, rule: Callable) -> None:
  """Joins ``prim`` if its rule, which has just been defined, isn't JAX's."""
  while isinstance(rule, functools.partial):
    rule = rule.func
  module = getattr(rule, '__module__', None) or ''
  if module == 'jax' or module.startswith('jax.'):
    return
  from jax._src.varying.rules import primitives  # it imports core
  if prim in primitives.joined:  # its rule is defined once more
    primitives.join(prim, cast=False)
  else:
    primitives.join(prim)
