# SPDX-License-Identifier: Apache-2.0
"""A sample of JAX's public functions inside shard_map, by value (jax#28193).

Forward and gradient, compared with the same function of each device's block;
arguments vary along both mesh axes, along one, or are shared. All functions:
benchmarks/shard_map_sweep.py. A family is one program, which compiles faster.
"""
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
from varying.testing import sweep_cases as cases
from varying.testing import common as testing

jax.config.parse_flags_with_absl()

FAMILIES = {
    'linalg': """
        jnp.linalg.solve jnp.linalg.cholesky jnp.linalg.qr jnp.linalg.eigh
        svd_thin jnp.linalg.slogdet triangular_solve""",
    'fft_and_conv': """
        jnp.fft.fft jnp.fft.rfft jnp.fft.irfft2 conv max_pool
        reduce_window""",
    'order': """
        jnp.sort top_k sort_two jnp.argmax jnp.median searchsorted jnp.cumsum
        lax.cumlogsumexp""",
    'indices': """
        gather jnp.at.set jnp.at.add take_along_axis dynamic_slice
        dynamic_update_slice ops.segment_sum bincount where piecewise""",
    'nn': 'one_hot nn.relu nn.gelu nn.softmax nn.logsumexp attention',
    'special': """
        special.gammaln special.digamma special.erfinv special.xlogy
        special.i0e logsumexp_b""",
    'random': """
        random.normal random.categorical random.permutation
        random.randint""",
    'control': """
        scan scan_carry_replicated cond switch while fori_traced checkpoint
        custom_vjp custom_root closure_convert jnp.matmul einsum""",
}
TABLE = cases.table()
SAMPLE = ['jnp.sort', 'jnp.at.add', 'nn.softmax', 'special.xlogy']
EAGER = ['gather']
# Compiling is most of the work, and what is compiled is small.
FAST = {'xla_backend_optimization_level': '0',
        'xla_llvm_disable_expensive_passes': 'True'}


class SweepTest(jtu.JaxTestCase):

  def check(self, names, two, jit=True):
    """Forward and gradient of each function, all in one program."""
    sizes = cases.sizes_of(two)
    placed, parts, wrt = {}, {}, {}
    for name in names:
      f, kinds, *limits = TABLE[name]
      parts[name], wrt[name] = cases.parts_of(f, kinds, *(limits or ['']))
      parts[name].pop('jvp', None)
      # Of the mixtures, one that differs from argument to argument.
      mixture = cases.mixtures(len(kinds), two)[-1 if two else 0]
      placed[name] = cases.Placed(kinds, mixture, sizes)

    def body(args):
      return {n: {p: placed[n].within(g)(*args[n])
                  for p, g in parts[n].items()} for n in names}
    def alone(args):
      return {n: {p: g(*args[n]) for p, g in parts[n].items()} for n in names}

    run = testing.shard_map(
        body, mesh=testing.make_mesh(*sizes.values()),
        in_specs=({n: list(placed[n].specs) for n in names},),
        out_specs={n: {p: placed[n].specs_of(p, wrt[n]) for p in parts[n]}
                   for n in names})
    got = (jax.jit(run, compiler_options=FAST) if jit else run)(
        {n: placed[n].args for n in names})
    alone, devices = jax.jit(alone, compiler_options=FAST), cases.DEVICES
    # Where fewer devices differ, the first one's arguments once more.
    with jax.enable_checks(False):
      results = [alone({n: (placed[n].per_device[d:] + placed[n].per_device)[0]
                        for n in names}) for d in range(devices)]
    for n in names:
      for p in parts[n]:
        with self.subTest(f'{n}, {p}'):
          count = len(placed[n].per_device)
          want = placed[n].expected(
              p, wrt[n], [r[n][p] for r in results[:count]])
          self.assertEqual(cases.difference(got[n][p], want), '')

  @parameterized.parameters(*FAMILIES)
  def test_2d(self, family):
    self.check(FAMILIES[family].split(), two=True)

  def test_1d(self):
    self.check(SAMPLE, two=False)

  def test_eager(self):
    self.check(EAGER, two=True, jit=False)
