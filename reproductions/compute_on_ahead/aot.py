# SPDX-License-Identifier: Apache-2.0
"""compute_on around jax.jit, called and ahead of time (jax#27825)."""

import jax
from jax.experimental.compute_on import compute_on
import numpy as np

REPORT = "jax#27825"


def _host(f):
  """`f` on the host, in the spelling of this release."""
  if jax.__version_info__ < (0, 11, 1):
    return compute_on("device_host")(f)
  return compute_on(f, compute_type="device_host",
                    out_memory_spaces=jax.memory.Space.Device)


def _adds(x):
  sums = {"cpu": lambda x: 1. + x, "default": lambda x: 2. + x}
  return jax.lax.platform_dependent(x, **sums)


def lower():
  """compute_on(...)(jax.jit(f)).lower(x) keeps the compute type"""
  f = _host(jax.jit(_adds))
  assert hasattr(f, "lower"), "the result of compute_on has no lower"
  text = f.lower(np.float32(0)).as_text()
  assert '_xla_compute_type = "host"' in text, (
      "the lowering has no compute type")
  return "the lowering has the compute type"


def lower_for_tpu():
  """What is lowered for TPU under compute_on takes the host's branch"""
  f = _host(jax.jit(_adds))
  assert hasattr(f, "trace"), "the result of compute_on has no trace"
  traced = f.trace(np.float32(0))
  text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert '_xla_compute_type = "host"' in text, (
      "the lowering has no compute type")
  from jax import export
  check = export.DisabledSafetyCheck.platform()
  exported = export.export(f, platforms=("tpu",), disabled_checks=[check])
  out = exported(np.float32(0)).call(np.float32(0))
  assert out == 1, f"added {out}: the branch of another platform"
  return "added 1, as the call does"


def static_arguments():
  """compute_on around a jitted function with static arguments"""
  f = _host(jax.jit(lambda x, n: x * n, static_argnums=1))
  out = f(np.float32(2), 3)
  assert out == 6, f"got {out}"
  assert '_xla_compute_type = "host"' in f.lower(np.float32(2), 3).as_text(), (
      "the lowering has no compute type")
  return "called and lowered with the static argument"


def unjitted():
  """.lower of a function that is not jitted says to apply jax.jit"""
  f = _host(lambda x: x + 1)
  try:
    f.lower(np.float32(0))
  except AttributeError as e:
    assert "jax.jit" in str(e), f"AttributeError: {e}"
    return "the error says to apply jax.jit"
  raise AssertionError("lowered a function that is not jitted")
