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
"""One lowered rule for two compute types (jax#27825)."""

import jax
import numpy as np

REPORT = "jax#27825"


def argmax_within_and_outside():
  """argmax within compute_on and outside of it, in one program"""
  from jax.experimental.compute_on import compute_on
  f = lambda x: jax.lax.argmax(x, 0, np.int32)
  if jax.__version_info__ < (0, 11, 1):
    host = compute_on("device_host")(f)
  else:
    host = compute_on(f, compute_type="device_host",
                      out_memory_spaces=jax.memory.Space.Device)
  x = np.ones(4, np.float32)
  text = jax.jit(lambda x: (host(x), f(x))).lower(x).as_text()
  bodies = [body for body in text.split("func.func")
            if "stablehlo.reduce" in body]
  marked = sorted("_xla_compute_type" in body for body in bodies)
  assert marked == [False, True], f"bodies with the compute type: {marked}"
  return "one body on the host, one on the device"
