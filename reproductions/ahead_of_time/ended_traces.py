# SPDX-License-Identifier: Apache-2.0
"""A function that closes over a value of a trace that has ended."""
import jax
import jax.numpy as jnp

REPORT = "jax#35799"


def _closing_over_a_dead_tracer():
  saved = []

  @jax.jit
  def f(x):
    saved.append(x)          # a mistake
    return x
  f(1.)
  return jax.jit(lambda y: y + saved[0])


def lowered():
  """lower() of a function that closes over a dead tracer"""
  g = _closing_over_a_dead_tracer()
  try:
    compiled = g.lower(jnp.float32(2)).compile()
    compiled(jnp.float32(2))
  except jax.errors.UnexpectedTracerError:
    return "UnexpectedTracerError, as from a call"
  except TypeError as e:
    raise AssertionError(str(e)) from e


def exported():
  """export of a function that closes over a dead tracer"""
  from jax import export
  g = _closing_over_a_dead_tracer()
  try:
    export.export(g)(jnp.float32(2))
  except jax.errors.UnexpectedTracerError:
    return "UnexpectedTracerError, as from a call"
  except Exception as e:
    raise AssertionError(f"{type(e).__name__}: {e}") from e
