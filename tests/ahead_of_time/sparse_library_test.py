# SPDX-License-Identifier: Apache-2.0
"""Tridiagonal solves that are lowered for a GPU on a machine without one."""
from unittest import mock

from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import test_util as jtu
from jax._src.lib import gpu_sparse
import jax.numpy as jnp
import numpy as np
from testing.red import red

jax.config.parse_flags_with_absl()

# What pristine JAX says.
OTHER_WORDS = {
    '<0.6':
        "^AssertionError: Regex didn't match: .*jax 0.6.1' not found in "
        '"AttributeError: \'NoneType\' object has no attribute \'gtsv2',
    '>=0.6':
        "^AssertionError: Regex didn't match: .*jax 0.6.1' not found in "
        "'AssertionError: '",
}

solve = lax.linalg.tridiagonal_solve


def system(n=5):
  d = np.linspace(2, 3, n, dtype=np.float32)
  lower = np.where(np.arange(n) > 0, d / 7, 0).astype(np.float32)
  upper = np.where(np.arange(n) < n - 1, d / 5, 0).astype(np.float32)
  b = np.arange(2 * n, dtype=np.float32).reshape(n, 2)
  return lower, d, upper, b


class Sizes:
  """What jax asks of cuSPARSE."""

  @staticmethod
  def gtsv2_f32_buffer_size(m, n, ldb):
    del m, n, ldb
    return 64

  @staticmethod
  def build_gtsv2_descriptor(batch, m, n, ldb):
    del batch, m, n, ldb
    return b'sizes'


class SparseLibraryTest(jtu.JaxTestCase):

  def assert_refused(self, platform, run):
    try:
      run()
    except Exception as e:  # pylint: disable=broad-exception-caught
      said = f'{type(e).__name__}: {e}'
    else:
      said = 'not refused'
    self.assertRegex(
        said, 'NotImplementedError: jax.lax.linalg.tridiagonal_solve: lowering '
        f'for {platform} expected .*jax 0.6.1')

  @red(OTHER_WORDS)
  @parameterized.parameters('cuda', 'rocm')
  def test_refused(self, platform):
    traced = jax.jit(solve).trace(*system())
    for platforms in ((platform,), ('cpu', platform)):
      self.assert_refused(platform, lambda: traced.lower(
          lowering_platforms=platforms))

  @red(OTHER_WORDS)
  @parameterized.parameters('cuda', 'rocm')
  def test_refused_by_export(self, platform):
    exported = export.export(jax.jit(solve), platforms=[platform])
    self.assert_refused(platform, lambda: exported(*system()))

  def test_other_platforms(self):
    lower, d, upper, b = system()
    dense = np.diag(d) + np.diag(lower[1:], -1) + np.diag(upper[:-1], 1)
    expected = np.linalg.solve(dense, b)
    for f in (solve, jax.jit(solve), export.export(
        jax.jit(solve), platforms=['cpu', 'tpu'])(*system()).call):
      self.assertAllClose(f(lower, d, upper, b), expected, rtol=1e-5)
    text = jax.jit(solve).trace(*system()).lower(
        lowering_platforms=('tpu',)).as_text()
    self.assertNotIn('custom_call', text)

  if jax.__version_info__ >= (0, 6):  # earlier ones keep the library
    def test_with_the_library(self):
      with mock.patch.object(gpu_sparse, '_cusparse', Sizes):
        text = jax.jit(solve).trace(*map(jnp.asarray, system())).lower(
            lowering_platforms=('cuda',)).as_text()
      self.assertIn('custom_call @cusparse_gtsv2_f32_ffi', text)
