# SPDX-License-Identifier: Apache-2.0
"""Functions that close over a tracer of an ended trace (jax#35799)."""

import gc

from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np
from testing.red import red

jax.config.parse_flags_with_absl()

# What pristine JAX says.
NO_UNEXPECTED_TRACER_ERROR = '^AssertionError: UnexpectedTracerError not raised'
TOO_MANY_LEAVES = '^ValueError: Too many leaves for PyTreeDef'

X = np.arange(4, dtype=np.float32)


def leaked_by(transformed):
  """A tracer that `transformed` hands to the function that it is given."""
  saved = []
  def leak(x):
    saved.append(x * 2)
    return x.sum()
  transformed(leak)
  return saved[0]


LEAKS = {
    'jit': lambda f: jax.jit(f)(X),
    'eval_shape': lambda f: jax.eval_shape(f, X),
    'make_jaxpr': lambda f: jax.make_jaxpr(f)(X),
    'scan': lambda f: lax.scan(lambda c, x: (c, f(x)), 0., X[None]),
    'cond': lambda f: lax.cond(X[0] > 1, lambda: f(jnp.sin(X)), lambda: 0.),
    'jit_of_grad': lambda f: jax.jit(jax.grad(lambda x: jax.jit(f)(x)))(X),
}

WAYS = {
    'lower': lambda f: jax.jit(f).lower(X),
    'trace': lambda f: jax.jit(f).trace(X).lower(),
    'platforms': lambda f: jax.jit(f).trace(X).lower(
        lowering_platforms=('cpu', 'tpu')),
    'export': lambda f: export.export(jax.jit(f))(X),
    'export_sizes': lambda f: export.export(jax.jit(lambda x: x + f(X)[0]))(
        jax.ShapeDtypeStruct(export.symbolic_shape('n'), X.dtype)),
}


class EndedTracesTest(jtu.JaxTestCase):

  def refused(self, way, f):
    with self.assertRaises(jax.errors.UnexpectedTracerError) as caught:
      WAYS[way](f)
    self.assertIn('escape the scope', str(caught.exception))

  @red(NO_UNEXPECTED_TRACER_ERROR)
  @parameterized.parameters(*LEAKS)
  def test_lower(self, leak):
    dead = leaked_by(LEAKS[leak])
    self.refused('lower', lambda x: x + dead)
    self.refused('trace', lambda x: x + dead)

  @red({
      '<0.8.2': '^AssertionError: raised by _export.expand_in_shardings',
      '>=0.8.2': TOO_MANY_LEAVES,
  }, cases=['export'])
  @red({
      '<0.8.2': '^AssertionError: raised by _export._wrap_main_func',
      '>=0.8.2': TOO_MANY_LEAVES,
  }, cases=['export_sizes'])
  @red(NO_UNEXPECTED_TRACER_ERROR)
  @parameterized.parameters(*WAYS)
  def test_ways(self, way):
    dead = leaked_by(LEAKS['jit'])
    self.refused(way, lambda x: x + dead)

  @red(NO_UNEXPECTED_TRACER_ERROR)
  def test_within_calls(self):
    dead = leaked_by(LEAKS['jit'])
    self.refused('lower', lambda x: jax.jit(lambda y: y + dead)(x))
    self.refused('lower', lambda x: lax.scan(
        lambda c, y: (c + dead, y), x, X)[0])
    self.refused('lower', lambda x: jax.grad(lambda y: (y * dead).sum())(x))

  @red(NO_UNEXPECTED_TRACER_ERROR)
  def test_returned_alone(self):
    dead = leaked_by(LEAKS['jit'])
    self.refused('lower', lambda x: dead)

  @red(NO_UNEXPECTED_TRACER_ERROR)
  def test_called_while_it_lived(self):
    saved = []
    def outer(x):
      saved.append(jax.jit(lambda y: x + y))
      return saved[-1](X)
    self.assertArraysEqual(jax.jit(outer)(X), 2 * X)
    with self.assertRaises(jax.errors.UnexpectedTracerError):
      saved[0].lower(X)

  @red(NO_UNEXPECTED_TRACER_ERROR)
  def test_traced_while_it_lived(self):
    saved = []
    def outer(x):
      saved.append(jax.jit(lambda y: x + y).trace(X))
      return x
    jax.jit(outer)(X)
    with self.assertRaises(jax.errors.UnexpectedTracerError):
      saved[0].lower()

  @red(NO_UNEXPECTED_TRACER_ERROR)
  def test_same_as_a_call(self):
    dead = leaked_by(LEAKS['jit'])
    said = []
    for way in (lambda f: f(X), lambda f: f.lower(X)):
      with self.assertRaises(jax.errors.UnexpectedTracerError) as caught:
        way(jax.jit(lambda x: x + dead))
      said.append(str(caught.exception))
    self.assertEqual(*said)

  def test_live_ones_are_lowered(self):
    texts = []
    def lowers(x):
      texts.append(jax.jit(lambda y: x + y).lower(X).as_text())
      return x.sum()
    jax.jit(lowers)(X)
    jax.grad(lowers)(X)
    jax.jit(jax.grad(lowers))(X)
    jax.vmap(lowers)(X[None])
    jax.jit(jax.vmap(lowers))(X[None])
    lax.scan(lambda c, x: (c, lowers(x)), 0., X[None])
    jax.checkpoint(lowers)(X)
    for text in texts:
      self.assertEqual(text.count('tensor<4xf32> {') or
                       text.count('%arg1: tensor<4xf32>'), 1, text)

  def test_enclosing_trace_lives(self):
    def outer(x):
      def inner(y):
        return jax.jit(lambda z: x + y + z).lower(X).as_text(), y
      jax.make_jaxpr(lambda y: inner(y)[1])(x)
      return len(jax.jit(lambda z: x + z).lower(X).as_text())
    self.assertGreater(jax.jit(outer)(X), 0)

  def test_what_is_told_of_it_stays(self):
    dead = leaked_by(LEAKS['jit'])
    f = lambda x: x + dead
    for told in (jax.eval_shape(f, X), jax.jit(f).trace(X).out_info,
                 jax.jit(f).eval_shape(X)):
      self.assertEqual((told.shape, told.dtype), ((4,), np.float32))
    self.assertLen(jax.make_jaxpr(f)(X).jaxpr.invars, 1)

  def test_others_are_lowered(self):
    leaked_by(LEAKS['jit'])
    shift = jnp.ones(4)
    out = jax.jit(lambda x: x + shift).lower(X).compile()(X)
    self.assertArraysEqual(out, X + 1)

  def test_pmap_is_lowered(self):
    lowered = jax.pmap(lambda x: x + 1).lower(X[None])  # keeps no arguments
    self.assertArraysEqual(lowered.compile()(X[None]), X[None] + 1)

  def test_keeps_no_trace_alive(self):
    with jax.checking_leaks():
      self.assertArraysEqual(jax.jit(lambda x: x + 1)(X), X + 1)
    gc.collect()
