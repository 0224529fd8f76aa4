# SPDX-License-Identifier: Apache-2.0
"""Minima and maxima of numbers of which one is nan."""
import jax
import jax.numpy as jnp
import numpy as np

REPORT = "jax#39887"
OPTION = "jax_cpu_nan_extrema"


def _with_nan():
  return jnp.arange(5000.).at[2500].set(np.nan)


def _nan(f):
  if hasattr(jax.config, OPTION):
    jax.config.update(OPTION, True)
  try:
    got = float(f(_with_nan()))
  finally:
    if hasattr(jax.config, OPTION):
      jax.config.update(OPTION, False)
  assert np.isnan(got), got
  return str(got)


def maximum():
  """max of 5000 is nan where one is, with jax_cpu_nan_extrema"""
  return _nan(jnp.max)


def after_relu():
  """the sum of relu(x) is nan where x is, with the option"""
  return _nan(jax.jit(lambda x: jnp.sum(jax.nn.relu(x))))


def of_windows():
  """the largest of a window with nan is nan, with the option"""
  return _nan(lambda x: jax.lax.reduce_window(
      x, -jnp.inf, jax.lax.max, (5000,), (5000,), "VALID")[0])


def among_devices():
  """pmax over two devices is nan where one of them has nan"""
  f = jax.pmap(lambda x: jax.lax.pmax(x, "i"), axis_name="i",
               devices=jax.devices()[:2])
  got = [float(f(np.array(x, np.float32))[0])
         for x in ([np.nan, 1], [1, np.nan])]
  assert np.isnan(got).all(), got
  return str(got)
