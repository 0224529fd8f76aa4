# SPDX-License-Identifier: Apache-2.0
"""What __array_namespace_info__().devices() offers (jax#27606)."""
import os
import socket
import subprocess
import sys

import jax
import jax.numpy as jnp

REPORT = "jax#27606"

_JOB = """
import jax, jax.numpy as jnp, sys
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
devices = [d for d in jnp.__array_namespace_info__().devices() if d]
print(*[d.process_index for d in devices])
"""


def unspecified_is_first():
  """devices() offers None, the default device, first"""
  info = jnp.__array_namespace_info__()
  got = info.devices()
  assert info.default_device() in got, f"devices() is {got}"
  assert got[0] is None, f"devices() is {got}"
  return f"{got[0]}, then {len(got) - 1} devices"


def default_backend_is_first():
  """devices() offers all backends' devices, the default backend's first"""
  from jax._src import xla_bridge
  from jax._src.lib import xla_client
  xla_bridge.register_backend_factory(
      "other", xla_client.make_cpu_client, priority=10)
  jax.config.update("jax_platforms", "")
  want = jax.devices("other") + jax.devices("cpu")
  got = [d for d in jnp.__array_namespace_info__().devices() if d is not None]
  order = list(dict.fromkeys(
      "other" if d in jax.devices("other") else "cpu" for d in got))
  assert got == want, f"backends offered: {order}, by default: other"
  return f"backends offered: {order}, by default: other"


def other_processes_devices():
  """devices() offers no device of another process"""
  with socket.socket() as s:
    s.bind(("localhost", 0))
    address = f"localhost:{s.getsockname()[1]}"
  env = dict(os.environ, XLA_FLAGS="--xla_force_host_platform_device_count=2")
  jobs = [subprocess.Popen([sys.executable, "-c", _JOB, address, str(i)],
                           env=env, stdout=subprocess.PIPE, text=True)
          for i in range(2)]
  try:
    owners = [job.communicate(timeout=50)[0].split() for job in jobs]
  finally:
    for job in jobs:
      job.kill()
  said = f"process 1 is offered devices of processes {', '.join(owners[1])}"
  assert set(owners[0]) == {"0"} and set(owners[1]) == {"1"}, said
  return said
