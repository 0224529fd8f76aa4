# SPDX-License-Identifier: Apache-2.0
"""An executable stored in one process and loaded in another (jax#28908)."""

import os
import subprocess
import sys
import tempfile

import jax
import jax.experimental.compilation_cache.compilation_cache
import numpy as np

REPORT = "jax#28908"

_LOAD = """
import pickle, sys
from jax.experimental import serialize_executable
with open(sys.argv[1], 'rb') as f:
  stored, x = pickle.load(f)
print(serialize_executable.deserialize_and_load(*stored)(x).tolist())
"""


def _loaded_elsewhere(f, x, shardings=None):
  """What `f(x)` is, stored here and called in a new process."""
  import pickle
  from jax.experimental import serialize_executable
  options = {} if shardings is None else {
      "in_shardings": shardings, "out_shardings": shardings}
  stored = serialize_executable.serialize(
      jax.jit(f, **options).lower(x).compile())
  with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "stored")
    with open(path, "wb") as file:
      pickle.dump((stored, x), file)
    ran = subprocess.run([sys.executable, "-c", _LOAD, path],
                         capture_output=True, text=True, check=False)
  last = (ran.stderr.strip().splitlines() or [""])[-1]
  assert ran.returncode == 0, f"exit status {ran.returncode} {last[:90]}"
  return np.array(eval(ran.stdout))  # pylint: disable=eval-used


def linear_algebra():
  """A stored executable with LAPACK kernels, called in a new process"""
  x = np.array([[4., 1.], [1., 3.]], np.float32)
  out = _loaded_elsewhere(jax.numpy.linalg.inv, x)
  np.testing.assert_allclose(out, np.linalg.inv(x), rtol=1e-5)
  return "the inverse"


def some_of_the_devices():
  """A stored executable for one device, or for some, of several"""
  x = np.arange(8, dtype=np.float32)
  devices = np.array(jax.devices()[:max(1, len(jax.devices()) // 2)])
  sharding = jax.sharding.NamedSharding(
      jax.sharding.Mesh(devices, ("x",)), jax.sharding.PartitionSpec("x"))
  out = _loaded_elsewhere(jax.numpy.cumsum, x, sharding)
  np.testing.assert_allclose(out, np.cumsum(x))
  return f"ran on {len(devices)} of {len(jax.devices())}"


def from_the_cache():
  """A stored executable that the compilation cache had"""
  def f(x):
    return jax.numpy.sin(x) + x
  x = np.arange(8, dtype=np.float32)
  with tempfile.TemporaryDirectory() as folder:
    jax.config.update("jax_enable_compilation_cache", True)
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.experimental.compilation_cache.compilation_cache.reset_cache()
    jax.jit(f).lower(x).compile()
    jax.clear_caches()  # as if it were the next process
    out = _loaded_elsewhere(f, x)
  np.testing.assert_allclose(out, np.sin(x) + x, rtol=1e-6)
  return "the sum"


def called_before():
  """serialize() of an executable that has been called"""
  from jax.experimental import serialize_executable
  x = np.array([3, 1, 2], np.float32)
  compiled = jax.jit(jax.numpy.sort).lower(x).compile()
  compiled(x)
  try:
    serialize_executable.serialize(compiled)
  except RuntimeError as e:
    assert "clear_caches" in str(e), f"{str(e)[:80]}, and no next step"
    return "refused, with the next step"
  return "stored"
