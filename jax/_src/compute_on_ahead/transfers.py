# SPDX-License-Identifier: Apache-2.0
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
