# SPDX-License-Identifier: Apache-2.0
"""What varies about the results of kernels that need a GPU or TPU (issue 3).

Only their types are looked at, which takes neither.
"""
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
from jax._src.cudnn import scaled_matmul_stablehlo
from jax.experimental.sparse import _lowerings as sparse_lowerings
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import make_mesh

jax.config.parse_flags_with_absl()

F32 = np.float32
MESHES = {'1d': (4,), '2d': (2, 4)}


def scaled_matmul(x):
  return scaled_matmul_stablehlo._scaled_matmul_p_wrapper.bind(
      jnp.zeros((1, 32, 64), jnp.float8_e4m3fn),
      jnp.zeros((1, 32, 64), jnp.float8_e4m3fn),
      jnp.broadcast_to(x, (1, 32, 2)).astype(jnp.float8_e8m0fnu),
      jnp.zeros((1, 32, 2), jnp.float8_e8m0fnu),
      preferred_element_type=np.dtype(F32))


def coo_spmv(x):
  index = jnp.arange(3, dtype=np.int32)
  return sparse_lowerings.coo_spmv_p.bind(
      jnp.ones(3, F32), index, index, jnp.broadcast_to(x, (3,)),
      transpose=False, shape=(3, 3))


def csr_spmm(x):
  index = jnp.arange(3, dtype=np.int32)
  return sparse_lowerings.csr_spmm_p.bind(
      jnp.ones(3, F32), index, jnp.arange(4, dtype=np.int32),
      jnp.broadcast_to(x, (3, 2)), transpose=False, shape=(3, 3))


KERNELS = dict(coo_spmv=coo_spmv, csr_spmm=csr_spmm)
if hasattr(jnp, 'float8_e8m0fnu'):
  KERNELS['scaled_matmul'] = scaled_matmul


class KernelTypesTest(jtu.JaxTestCase):

  @red(r"^AssertionError: False is not true : \(P.*\('x',\), "
       r'\[frozenset\(\)\]\)')
  @parameterized.product(kernel=list(KERNELS), mesh=list(MESHES))
  def test_varies_where_one_operand_does(self, kernel, mesh):
    seen = []

    def body(x):
      out = KERNELS[kernel](x[0])
      seen.extend(map(axes_of, jax.tree_util.tree_leaves(out)))
      return ()

    mesh = make_mesh(*MESHES[mesh])
    for spec, want in [(P('x'), {'x'}), (P(), set())]:
      jax.make_jaxpr(shard_map(body, mesh=mesh, in_specs=spec, out_specs=()))(
          np.ones(4, F32))
      self.assertNotEmpty(seen)
      self.assertTrue(all(axes == want for axes in seen), (spec, seen))
      seen.clear()
