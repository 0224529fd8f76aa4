# SPDX-License-Identifier: Apache-2.0
"""CompileOptions where a dictionary is expected."""
import jax
import jax.numpy as jnp

REPORT = "jax#24869"


def as_an_object():
  """compile(compiler_options=CompileOptions())"""
  from jax._src.lib import xla_client
  lowered = jax.jit(jnp.sin).lower(1.)
  try:
    lowered.compile(compiler_options=xla_client.CompileOptions())
  except TypeError as e:
    return str(e)[:60]
  except AttributeError as e:
    raise AssertionError(str(e)) from e
