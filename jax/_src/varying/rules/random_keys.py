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
"""A random key for parameters that vary along more mesh axes than it does.

A key that is the same on all devices, with parameters that differ: each device
draws from its own distribution with the same underlying bits, as it does where
``random.uniform`` is given bounds that vary, or ``random.poisson`` rates. That
is well defined, and it is what the program says on one device; the key is cast,
which is nothing at run time. Upstream refuses it in the samplers built on
``gamma``, to warn of draws that are correlated between devices. Who wants
independent draws folds the device's index into the key, there as elsewhere.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax._src.varying import types as vt


def key_for(key: Any, params: Sequence[Any]):
  """The key, cast to vary along all that the parameters vary along."""
  axes = vt.NO_AXES.union(*(vt.varying(vt.typeof(p)) for p in params))
  return vt.cast(key, axes)
