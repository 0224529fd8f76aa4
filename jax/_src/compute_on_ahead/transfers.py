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
"""One array, put in another place.

JAX imports the modules of types and traces, which import ours, before the one
that moves arrays. That one is therefore imported when it is used.
"""

from __future__ import annotations

from typing import Any


def put(x: Any, place: Any) -> Any:
  """Returns an array in a memory space, or by a sharding; a copy."""
  from jax._src import dispatch
  y, = dispatch.device_put_p.bind(
      x, devices=(place,), srcs=(None,),
      copy_semantics=(dispatch.ArrayCopySemantics.ALWAYS_COPY,))
  return y
