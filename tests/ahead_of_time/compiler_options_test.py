# SPDX-License-Identifier: Apache-2.0
"""Compiler options that are no dictionary (jax#24869)."""

import collections
import types

from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
from jax._src.lib import xla_client
import jax.numpy as jnp
import numpy as np
from testing.red import red

jax.config.parse_flags_with_absl()

X = np.arange(4, dtype=np.float32)
OPTION = {'xla_embed_ir_in_executable': True}
NONE_OF_THEM = {
    'CompileOptions': xla_client.CompileOptions(),
    'list': [('xla_embed_ir_in_executable', True)],
    'str': 'xla_embed_ir_in_executable=true',
    'tuple': (),
}
WAYS = {
    'jax.stages.Lowered.compile':
        lambda options: jax.jit(jnp.sin).lower(X).compile(options),
    'jax.jit':
        lambda options: jax.jit(jnp.sin, compiler_options=options).lower(X),
}


class CompilerOptionsTest(jtu.JaxTestCase):

  @red('^AssertionError: AttributeError.* is not an instance of .* : options '
       'are not refused by name')
  @parameterized.product(way=[*WAYS], name=[*NONE_OF_THEM])
  def test_refused_by_name(self, way, name):
    try:
      WAYS[way](NONE_OF_THEM[name])
    except (AttributeError, TypeError) as e:
      self.assertIsInstance(e, TypeError, 'options are not refused by name')
      self.assertRegex(
          str(e), f'^{way}: expected compiler_options to be None or a dict.* '
          f'got {name}. Pass each')
    else:
      self.fail('nothing is refused')

  @parameterized.parameters(
      lambda: None, lambda: {}, lambda: dict(OPTION),
      lambda: types.MappingProxyType(OPTION),
      lambda: collections.ChainMap(OPTION))
  def test_accepted(self, make):
    options = make()
    compiled = jax.jit(jnp.sin).lower(X).compile(options)
    self.assertAllClose(compiled(X), np.sin(X))
    self.assertAllClose(jax.jit(jnp.sin, compiler_options=options)(X),
                        np.sin(X))

  def test_unknown_names_are_xlas(self):
    with self.assertRaisesRegex(Exception, 'no_such_option'):
      jax.jit(jnp.sin).lower(X).compile({'no_such_option': True})
