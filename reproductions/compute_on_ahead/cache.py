# SPDX-License-Identifier: Apache-2.0
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
