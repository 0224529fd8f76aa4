# SPDX-License-Identifier: Apache-2.0
"""The memory of an exported function's results (jax#33649)."""

import contextlib
from unittest import mock

import jax
from jax import export
from jax._src import config
from jax._src import test_util as jtu
from jax._src.interpreters import pxla
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from jax.sharding import SingleDeviceSharding
import numpy as np
from testing.red import red
from testing.sharding import eight_devices

config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
CUSTOM_CALL = ('^ValueError: .*custom calls whose targets have no '
               'compatibility guarantees')
NOT_IN_DEVICE_MEMORY = ('^AssertionError: False is not true : in the memory '
                        'device, for pinned_host')

X = np.arange(8, dtype=np.float32)
# Before 0.10.2 the CPU has one memory, and as the default it isn't written.
HAS_MEMORIES = jax.__version_info__ >= (0, 10, 2)
KIND = 'pinned_host' if HAS_MEMORIES else 'unpinned_host'


def read_back(f, x, **options):
  return export.deserialize(export.export(f, **options)(x).serialize())


class ExportedMemoriesTest(jtu.JaxTestCase):

  @red(CUSTOM_CALL, bases='<0.6')
  def test_out_shardings(self):
    rows = NamedSharding(Mesh(np.array(jax.devices()), ('x',)), P('x'))
    f = jax.jit(lambda x: x * 2, in_shardings=rows,
                out_shardings=rows.with_memory_kind(KIND))
    x = jax.device_put(X, rows)
    with contextlib.ExitStack() as stack:
      if not HAS_MEMORIES:
        stack.enter_context(mock.patch.object(
            pxla, 'are_all_shardings_default_mem_kind', lambda *_: False))
      read = read_back(f, x)
    self.assertIn(f'_xla_buffer_placement = "{KIND}"', read.mlir_module())
    if HAS_MEMORIES:
      for call in (read.call, jax.jit(read.call)):
        out = call(x)
        self.assertAllClose(np.asarray(out), X * 2)
        self.assertEqual(out.sharding, rows.with_memory_kind(KIND))

  @red(NOT_IN_DEVICE_MEMORY, bases='>=0.10.2')
  def test_one_device(self):
    self.check_one_device('one')

  @red(NOT_IN_DEVICE_MEMORY, bases='>=0.10.2')
  def test_one_device_for_some(self):
    self.check_one_device('some')

  def test_program_of_a_call(self):
    self.check_one_device('a_program_of_a_call')

  def check_one_device(self, results):
    place = SingleDeviceSharding(jax.devices()[0], memory_kind=KIND)
    f = jax.jit(lambda x: x * 2, out_shardings=place)
    try:
      f(X)
    except Exception as e:  # pylint: disable=broad-except
      if 'annotate_device_placement' not in str(e):
        raise
      self.skipTest('the CPU places nothing, from 0.7.1 to 0.10.1')
    if results == 'some':
      f = jax.jit(lambda x: {'a': x * 2, 'b': x + 1},
                  out_shardings={'a': place, 'b': None})
    elif results == 'a_program_of_a_call':
      f = jax.jit(export.export(f)(X).call)
    want = {'some': [KIND, jnp.ones(1).sharding.memory_kind]}.get(
        results, [KIND])
    exported = export.export(f)(X)
    for e in (exported, export.deserialize(exported.serialize())):
      compiled = jax.jit(e.call).lower(X).compile()
      for call in (e.call, jax.jit(e.call), compiled):
        for got, kind, value in zip(
            jax.tree.leaves(call(X)), want, [X * 2, X + 1]):
          self.assertAllClose(np.asarray(got), value)
          self.assertTrue(
              got.sharding.memory_kind == kind,
              f'in the memory {got.sharding.memory_kind}, for {kind}')
    self.assertEqual(jax.tree.leaves(e.call(X))[0].sharding.memory_kind, KIND)

  @red(CUSTOM_CALL, bases='<0.6')
  def test_device_put(self):
    if hasattr(jax, 'memory'):
      place = jax.memory.Space.Host
    else:
      # pylint: disable-next=g-import-not-at-top
      from jax._src.sharding_impls import TransferToMemoryKind
      place = TransferToMemoryKind('pinned_host')
    read = read_back(jax.jit(lambda x: jax.device_put(x * 2, place)), X,
                     platforms=('tpu',))
    self.assertIn('_xla_buffer_placement = "pinned_host"', read.mlir_module())

  def test_unknown_calls_stay_refused(self):
    call = jax.ffi.ffi_call('not_in_any_list',
                            jax.ShapeDtypeStruct(X.shape, X.dtype))
    with self.assertRaisesRegex(ValueError, 'no compatibility guarantees'):
      read_back(jax.jit(call), X)
