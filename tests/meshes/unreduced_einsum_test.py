# SPDX-License-Identifier: Apache-2.0
"""einsum of three operands with an unreduced result."""
import jax
from jax._src import config
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import AxisType, eight_devices, typed_mesh

config.parse_flags_with_absl()
eight_devices()

# The formula, the shapes, and the operands' shardings.
REFUSED = [
    # The last contraction's other operand isn't split: it ended the process.
    ('fh,fd,f->hd', [(6, 10), (6, 14), (6,)],
     [P(None, None), P('x', None), P(None)], "operand 0, 'fh'"),
    ('fh,fd,f->hd', [(6, 10), (6, 14), (6,)],
     [P('x', None), P(None, None), P(None)], "operand 1, 'fd'"),
    # j is summed first: the result was twice the sum.
    ('ij,jk,kl->il', [(4, 6), (6, 4), (4, 4)],
     [P(None, 'x'), P('x', None), P(None, None)], "operand 2, 'kl'"),
    ('ij,jk,kl->il', [(4, 6), (6, 8), (8, 2)],
     [P(None, None), P(None, 'x'), P('x', None)], "operand 0, 'ij'"),
    # Nothing is split.
    ('ij,jk,kl->il', [(4, 6), (6, 4), (4, 4)],
     [P(None, None), P(None, None), P(None, None)], "operand 1, 'jk'"),
]
RIGHT = [
    ('fh,fd,f->hd', [(6, 10), (6, 14), (6,)],
     [P('x', None), P('x', None), P('x')]),
    ('fh,fd,f->hd', [(6, 10), (6, 14), (6,)],
     [P('x', None), P('x', None), P(None)]),
    ('ij,jk,kl->il', [(2, 6), (6, 9), (9, 4)],
     [P(None, None), P(None, None), P(None, None)]),
    ('ij,jk->ik', [(2, 6), (6, 4)], [P(None, 'x'), P('x', None)]),
]
MESHES = [((2,), 'x'), ((2, 2), 'xy'), ((2, 1), 'xy')]
ONE_DEVICE = ((1, 2), 'xy')


def arrays(shapes, specs, mesh):
  random = np.random.RandomState(0)
  values = [random.randn(*s).astype(np.float32) for s in shapes]
  return values, [jax.device_put(x, NamedSharding(mesh, s))
                  for x, s in zip(values, specs)]


def explicit_mesh(sizes, names):
  return typed_mesh(sizes, tuple(names), (AxisType.Explicit,) * len(sizes))


class UnreducedEinsumTest(jtu.JaxTestCase):

  @red('^AssertionError: ShardingTypeError not raised')
  @jtu.sample_product(case=range(len(REFUSED)), mesh=MESHES, jit=[False, True])
  def test_refused(self, case, mesh, jit):
    formula, shapes, specs, words = REFUSED[case]
    mesh = explicit_mesh(*mesh)
    with jax.set_mesh(mesh):
      _, args = arrays(shapes, specs, mesh)
      f = lambda *args: jnp.einsum(
          formula, *args, out_sharding=P(None, None, unreduced={'x'}))
      with self.assertRaisesRegex(core.ShardingTypeError, words):
        if jit:
          jax.jit(f).trace(*args)  # compiled, it would end the process
        else:
          jax.eval_shape(f, *args)

  if jax.__version_info__ >= (0, 12):  # before, some have the whole sum

    @jtu.sample_product(case=range(len(REFUSED)), mesh=MESHES)
    def test_guard_executed_one_by_one(self, case, mesh):
      formula, shapes, specs, _ = REFUSED[case]
      mesh = explicit_mesh(*mesh)
      with jax.set_mesh(mesh):
        values, args = arrays(shapes, specs, mesh)
        got = jnp.einsum(formula, *args,
                         out_sharding=P(None, None, unreduced={'x'}))
        got = jax.sharding.reshard(got, P(None, None))
      self.assertAllClose(np.asarray(got), np.einsum(formula, *values),
                          rtol=1e-4, atol=1e-4)

  @jtu.sample_product(case=range(len(RIGHT)), mesh=[*MESHES, ONE_DEVICE])
  def test_guard_right(self, case, mesh):
    self.check_right(*RIGHT[case], mesh)

  @jtu.sample_product(case=[2, 3])
  def test_guard_axis_of_one_device(self, case):
    self.check_right(*REFUSED[case][:3], ONE_DEVICE)

  def check_right(self, formula, shapes, specs, mesh):
    split = any('x' in spec for spec in specs)
    out = P(None, None, unreduced={'x'}) if split else P(None, None)
    mesh = explicit_mesh(*mesh)
    with jax.set_mesh(mesh):
      values, args = arrays(shapes, specs, mesh)

      @jax.jit
      def f(*args):
        return jax.sharding.reshard(
            jnp.einsum(formula, *args, out_sharding=out), P(None, None))
      self.assertAllClose(np.asarray(f(*args)), np.einsum(formula, *values),
                          rtol=1e-4, atol=1e-4)
