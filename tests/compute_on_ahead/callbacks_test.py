# SPDX-License-Identifier: Apache-2.0
"""Callbacks, symbolic sizes and keys under compute_on (jax#27825)."""

from absl.testing import parameterized
import jax
from jax import export
from jax._src import config
from jax._src import test_util as jtu
from jax.experimental import io_callback
import jax.numpy as jnp
import numpy as np
from testing.compute_on_forms import FORMS
from testing.red import red

config.parse_flags_with_absl()

X = np.arange(4, dtype=np.float32)
MARK = '_xla_compute_type = "host"'


def operations(op):
  for region in op.regions:
    for block in region.blocks:
      for inner in block.operations:
        yield inner.operation
        yield from operations(inner.operation)


CALLBACKS = (
    ('print', lambda x: jax.debug.print('{}', x)),
    ('debug', lambda x: jax.debug.callback(lambda x: None, x)),
    ('io', lambda x: io_callback(lambda x: None, None, x)),
    ('ordered', lambda x: io_callback(lambda x: None, None, x, ordered=True)))


class ComputeOnCallbacksTest(jtu.JaxTestCase):

  @red('^AssertionError: .*the callback has no compute type')
  @parameterized.named_parameters(*CALLBACKS)
  def test_is_marked(self, call):
    for form in FORMS:
      def host(x):
        call(x)
        return x + 1
      lowered = jax.jit(form(host)).lower(X)
      module = lowered.compiler_ir('stablehlo')
      calls = [str(op) for op in operations(module.operation)
               if op.name == 'stablehlo.custom_call'
               and 'python' in op.attributes['call_target_name'].value]
      self.assertLen(calls, 1)
      self.assertIn(MARK, calls[0], 'the callback has no compute type')
      self.assertAllClose(lowered.compile()(X), X + 1)

  @parameterized.named_parameters(*CALLBACKS)
  def test_outside_is_not_marked(self, call):
    def outside(x):
      call(x)
      return x + 1
    self.assertNotIn(MARK, jax.jit(outside).lower(X).as_text())

  @red('^ValueError: Error refining shapes', bases='>=0.10.2')
  def test_symbolic_size(self):
    n, m = export.symbolic_shape('n, m')
    def host(x):
      return jnp.sin(x) * 2, x[0], x.shape[0] * jnp.ones(3)
    for form in FORMS:
      for shape, x in (((n,), X), ((2, n), np.stack([X, X])),
                       ((n, m, 2), np.ones((3, 5, 2), np.float32))):
        exported = export.export(jax.jit(form(host)))(
            jax.ShapeDtypeStruct(shape, np.float32))
        restored = export.deserialize(exported.serialize())
        for call in (exported.call, restored.call, jax.jit(restored.call)):
          sine, first, size = call(x)
          self.assertAllClose(sine, np.sin(x) * 2)
          self.assertAllClose(first, x[0])
          self.assertAllClose(size, np.full(3, len(x), np.float32))

  @red("^AssertionError: Regex didn't match: 'NotImplementedError: "
       r'\.\*jax\.debug\.print\.\*expected a program')
  @parameterized.named_parameters(*CALLBACKS)
  def test_several_platforms(self, call):
    def outside(x):
      call(x)
      return x + 1
    traced = jax.jit(outside).trace(X)
    try:
      traced.lower(lowering_platforms=('cpu', 'cuda'))
      said = 'lowered'
    except Exception as e:  # pylint: disable=broad-except
      said = f'{type(e).__name__}: {e}'
    self.assertRegex(said, 'NotImplementedError: .*jax.debug.print.*expected a '
                     'program that is lowered for one platform')

  def test_keys_are_constrained_at_the_modules_edge_alone(self):
    for form in FORMS:
      def split(key):
        return jax.random.split(jax.random.split(key)[0])
      host = form(jax.jit(split))
      if not hasattr(host, 'lower'):  # before compute_on had stages
        host = jax.jit(form(split))
      module = host.lower(jax.random.key(0)).compiler_ir('stablehlo')
      for function in module.body.operations:
        if function.operation.name != 'func.func':
          continue
        main = function.attributes['sym_name'].value == 'main'
        constraints = [op for op in operations(function.operation)
                       if 'harding' in op.name or '@Sharding' in str(op)]
        self.assertLen(constraints, 2 if main else 0)
