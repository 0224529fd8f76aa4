# SPDX-License-Identifier: Apache-2.0
"""Which primitives of kernels can tell devices apart: all are looked at."""
import importlib
import pkgutil
import sys

from absl.testing import absltest
from jax._src import core
from jax._src import pallas
from jax._src.lax import lax
from jax._src.varying.rules import kernels

# What these give follows from their operands and from memory of the call.
# Those of tensor cores and of other memories of a device are by their prefix.
COMPUTES = frozenset('''
    _copysign add_dependency all_reduce_ffs all_reduce_population_count
    assume_for_verification async_load async_prefetch async_store_smem
    async_store_tmem atomic_cas atomic_rmw barrier barrier_arrive
    barrier_arrive_and_wait barrier_test barrier_wait bitcast broadcasted_iota
    commit_group commit_smem commit_tmem conv core_map custom_fusion
    debug_barrier debug_print delay einshape einshape_lo
    elementwise_inline_asm emit_pipeline eval_jaxpr fusible gather
    griddepcontrol_launch_dependents griddepcontrol_wait has_memory_space
    jaxpr_call layout_cast load masked_cummax masked_cummin masked_cumsum
    masked_load masked_sort masked_swap max_contiguous mgpu_atomic_store mma
    mpmd_map multiple_of num_programs pack pack_dtype pack_elementwise
    pallas_call parallel_loop pipeline_body pretend_for_verification
    print_layout prng_join prng_seed prng_split program_id query_cluster_cancel
    reciprocal remove_memory_space repeat roll run_scoped sc_fetch_and_add
    scan_count scatter semaphore_read semaphore_wait set_max_registers
    stochastic_round store swap trace_value try_cluster_cancel unique unpack
    unpack_dtype unpack_elementwise wait_gmem_to_smem wait_load_tmem
    wait_smem_to_gmem with_memory_space_constraint'''.split())
PREFIXES = ('async_copy_', 'copy_', 'matmul_', 'mosaic_gpu_reduce_', 'tcgen05_',
            'wgmma')
ELSEWHERE = kernels.APART | set(kernels.TO_DEVICE) | {'prng_random_bits'}


def primitives_of(module):
  return [v for v in vars(module).values() if isinstance(v, core.Primitive)]


class KernelPrimitivesTest(absltest.TestCase):

  def test_each_has_been_looked_at(self):
    # On 0.8.0 a module of it that comes first can't be imported by itself.
    importlib.import_module('jax.experimental.pallas.tpu')
    for module in pkgutil.walk_packages(pallas.__path__, 'jax._src.pallas.',
                                        onerror=lambda _: None):
      try:
        importlib.import_module(module.name)
      except (ImportError, AttributeError):
        pass  # needs what isn't installed: registers nothing
    found = {p.name.removesuffix('_p') for name, module in sys.modules.items()
             if name.startswith('jax._src.pallas')
             for p in primitives_of(module)}
    found -= {p.name for p in primitives_of(lax)}
    unknown = {n for n in found - COMPUTES - ELSEWHERE
               if not n.startswith(PREFIXES)}
    self.assertGreater(len(found), 30)
    self.assertEqual(unknown, set())


if __name__ == '__main__':
  absltest.main()
