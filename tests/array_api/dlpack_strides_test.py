# SPDX-License-Identifier: Apache-2.0
"""Strides that the runtime reads or not: it is asked, where it can be."""
from unittest import mock

import jax
from jax._src import test_util as jtu
from jax._src import xla_bridge
from jax._src.array_api import dlpack

jax.config.parse_flags_with_absl()


class StridesTest(jtu.JaxTestCase):

  def test_the_runtime_answers_for_itself(self):
    dlpack._reads_strides.cache_clear()
    self.assertIsInstance(dlpack._reads_strides(), bool)

  def test_without_a_cpu_the_runtime_is_left_alone(self):
    # What JAX_PLATFORMS=cuda says of the backend of the CPU.
    gone = mock.patch.object(
        xla_bridge, 'get_backend', side_effect=RuntimeError('Unknown backend'))
    dlpack._reads_strides.cache_clear()
    self.addCleanup(dlpack._reads_strides.cache_clear)
    with gone as asked:
      self.assertTrue(dlpack._reads_strides())
    asked.assert_called_once()
