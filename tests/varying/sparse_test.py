# SPDX-License-Identifier: Apache-2.0
"""What varies about the results of sparse operations (issue 3)."""
from absl.testing import parameterized
import jax
from jax._src import test_util as jtu
from jax.experimental import sparse
from jax.experimental.sparse import linalg as sparse_linalg
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import axes_of
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
NO_AXES = r'^AssertionError: frozenset\(\) != \{'

F32 = np.float32
MESHES = {'1d': (4,), '2d': (2, 2)}


ROWS = np.array([0, 0, 1, 2, 3])
COLS = np.array([0, 2, 1, 3, 3])
INDPTR = np.array([0, 2, 3, 4, 5])
INDICES = np.stack([ROWS, COLS], 1)
NNZ = len(ROWS)


def dense(data):
  out = np.zeros((4, 4), F32)
  out[ROWS, COLS] = data
  return out


def bcoo(data):
  return sparse.BCOO((data, INDICES), shape=(4, 4))


def bcsr(data):
  return sparse.BCSR((data, COLS, INDPTR), shape=(4, 4))


def coo(data):
  return sparse.COO((data, ROWS, COLS), shape=(4, 4))


def csr(data):
  return sparse.CSR((data, COLS, INDPTR), shape=(4, 4))


def sampled(data, x):
  return sparse.bcoo_dot_general_sampled(
      jnp.outer(data[:4], x), jnp.eye(4), INDICES,
      dimension_numbers=(((1,), (0,)), ((), ())))


# Name: the operation on (data, x), what NumPy makes of it, and along which axes
# the result varies where data does along 'x', and x along 'y'.
OPS = {
    'bcoo_todense': (lambda d, x: bcoo(d).todense(),
                     lambda d, x: dense(d), 'x'),
    'bcoo_matvec': (lambda d, x: bcoo(d) @ x, lambda d, x: dense(d) @ x, 'xy'),
    'bcoo_matmat': (lambda d, x: bcoo(d) @ jnp.outer(x, x),
                    lambda d, x: dense(d) @ np.outer(x, x), 'xy'),
    'bcoo_transpose': (lambda d, x: bcoo(d).T @ x,
                       lambda d, x: dense(d).T @ x, 'xy'),
    'bcoo_spdot': (lambda d, x: (bcoo(d) @ bcoo(d)).todense(),
                   lambda d, x: dense(d) @ dense(d), 'x'),
    'bcoo_extract': (lambda d, x: sparse.bcoo_extract(
        bcoo(d), jnp.outer(x, x)).data,
                     lambda d, x: np.outer(x, x)[ROWS, COLS], 'y'),
    'bcoo_fromdense': (lambda d, x: sparse.bcoo_fromdense(
        bcoo(d).todense(), nse=NNZ).todense(), lambda d, x: dense(d), 'x'),
    'bcoo_sorted': (lambda d, x: bcoo(d).T.sort_indices().todense(),
                    lambda d, x: dense(d).T, 'x'),
    'bcoo_sum_duplicates': (lambda d, x: bcoo(d).sum_duplicates(
        nse=NNZ).todense(), lambda d, x: dense(d), 'x'),
    'bcoo_sampled': (sampled,
                     lambda d, x: np.outer(d[:4], x)[ROWS, COLS], 'xy'),
    'bcoo_mul_dense': (lambda d, x: (bcoo(d) * jnp.outer(x, x)).todense(),
                       lambda d, x: dense(d) * np.outer(x, x), 'xy'),
    'bcoo_reduce_sum': (lambda d, x: bcoo(d).sum(0).todense(),
                        lambda d, x: dense(d).sum(0), 'x'),
    'bcsr_todense': (lambda d, x: bcsr(d).todense(),
                     lambda d, x: dense(d), 'x'),
    'bcsr_matvec': (lambda d, x: bcsr(d) @ x, lambda d, x: dense(d) @ x, 'xy'),
    'coo_todense': (lambda d, x: coo(d).todense(), lambda d, x: dense(d), 'x'),
    'coo_matvec': (lambda d, x: coo(d) @ x, lambda d, x: dense(d) @ x, 'xy'),
    'coo_matmat': (lambda d, x: coo(d) @ jnp.outer(x, x),
                   lambda d, x: dense(d) @ np.outer(x, x), 'xy'),
    'csr_todense': (lambda d, x: csr(d).todense(), lambda d, x: dense(d), 'x'),
    'csr_matvec': (lambda d, x: csr(d) @ x, lambda d, x: dense(d) @ x, 'xy'),
    'csr_matmat': (lambda d, x: csr(d) @ jnp.outer(x, x),
                   lambda d, x: dense(d) @ np.outer(x, x), 'xy'),
}
DIFFERENTIATED = ('bcoo_matmat', 'bcoo_mul_dense', 'bcoo_sampled', 'coo_matvec',
                  'csr_matvec')


def data_of(n):
  rng = np.random.RandomState(0)
  return 1 + rng.rand(n, NNZ).astype(F32), 1 + rng.rand(n, 4).astype(F32)


class SparseTypesTest(jtu.JaxTestCase):

  @red('^AssertionError: ValueError not raised')
  @parameterized.product(op=list(OPS))
  def test_claim_of_replication_is_refused(self, op):
    data, x = data_of(4)
    f = shard_map(lambda d, x: OPS[op][0](d[0], x[0]), mesh=make_mesh(4),
                  in_specs=(P('x'), P('x')), out_specs=P())
    with self.assertRaisesRegex(ValueError, 'replicat'):
      jax.eval_shape(f, data, x)

  @red(NO_AXES)
  @parameterized.product(op=list(OPS))
  def test_values(self, op):
    # Data differs along 'x', the dense operand along 'y': a mixed operation.
    mesh = make_mesh(2, 2)
    data, x = data_of(2)
    fun, oracle, varies = OPS[op]

    def body(d, x):
      out = fun(d[0], x[0])
      self.assertEqual(axes_of(out), set(varies))
      return out[None, None]

    f = shard_map(body, mesh=mesh, in_specs=(P('x'), P('y')),
                  out_specs=P('x', 'y'))
    want = np.stack([np.stack([oracle(d, v) for v in x]) for d in data])
    self.assertAllClose(jax.jit(f)(data, x), want, rtol=1e-5)

  @parameterized.parameters(('bcoo_todense', '2d'), ('bcoo_matvec', '1d'),
                            ('csr_matvec', '2d'))
  def test_eager(self, op, mesh):
    mesh = make_mesh(*MESHES[mesh])
    data, x = data_of(mesh.shape['x'])
    f = shard_map(lambda d, x: OPS[op][0](d[0], x)[None], mesh=mesh,
                  in_specs=(P('x'), P()), out_specs=P('x'))
    self.assertAllClose(f(data, x[0]),
                        np.stack([OPS[op][1](d, x[0]) for d in data]))

  @red({
      '<0.6.1': r'^_RepError: \[<jax\.experimental\.shard_map\.NoFail',
      '>=0.6.1,<0.7': r'^_RepError: \[<jax\..*shard_map\.NoFail',
      '>=0.7,<0.8.2':
          '^ValueError: shard_map applied to the function .transpose.* '
          'require replication',
      '>=0.8.2,<0.10':
          '^ValueError: Input primal JAX type to VJP function is '
          r'float32\[4\]\{V:x\}\. Hence the expected cotangent',
      '>=0.10,<0.10.2':
          r'^ValueError: Expected cotangent type float32\[4\]\{V:x\} for '
          'primal type',
      '>=0.10.2':
          r'^ValueError: Expected cotangent type float32\[4\]\{V:x\} but got '
          r'float32\[4\]',
  }, cases={'op': ['coo_matvec', 'csr_matvec'], 'shared': 'data'})
  @red({
      '<0.8.2':
          r'^AssertionError: \s+Not equal to tolerance rtol=0\.0001, '
          r'atol=1e-06\s+Mismatched elements:',
      '>=0.8.2,<0.10':
          r'^ValueError: Input primal JAX type to VJP function is float32\[',
      '>=0.10': r'^ValueError: Expected cotangent type float32\[',
  })
  @parameterized.product(op=DIFFERENTIATED, shared=['data', 'x'])
  def test_gradient_of_a_shared_operand(self, op, shared):
    mesh = make_mesh(4)
    data, x = data_of(4)
    fun = OPS[op][0]
    specs = (P(), P('x')) if shared == 'data' else (P('x'), P())
    if shared == 'data':
      data, per_device = data[0], lambda i: (data, x[i])
    else:
      x, per_device = x[0], lambda i: (data[i], x)
    pick = lambda a, spec: a if spec == P() else a[0]
    f = shard_map(
        lambda d, x: jnp.sum(
            fun(pick(d, specs[0]), pick(x, specs[1])) ** 2)[None],
        mesh=mesh, in_specs=specs, out_specs=P('x'))
    loss = lambda d, x: jnp.sum(f(d, x))
    got = jax.jit(jax.grad(loss, (0, 1)))(data, x)
    one = jax.jit(jax.grad(lambda d, x: jnp.sum(fun(d, x) ** 2), (0, 1)))
    each = [one(*per_device(i)) for i in range(4)]
    want = [np.stack(g).sum(0) if np.shape(g[0]) == np.shape(a) else np.stack(g)
            for g, a in zip(zip(*each), (data, x))]
    self.assertAllClose(list(got), want, rtol=1e-4)

  @parameterized.parameters((False, '2d'), (True, '1d'))
  def test_replicated_operands(self, jit, mesh):
    data, x = data_of(1)
    f = shard_map(lambda d, x: bcoo(d) @ x, mesh=make_mesh(*MESHES[mesh]),
                  in_specs=(P(), P()), out_specs=P())
    self.assertAllClose(maybe_jit(jit)(f)(data[0], x[0]), dense(data[0]) @ x[0])

  @red(NO_AXES)
  def test_sparse_solve_is_typed_by_all_operands(self):
    data, b = data_of(4)

    def body(d, b):
      out = sparse_linalg.spsolve(d[0], jnp.asarray(COLS), jnp.asarray(INDPTR),
                                  b)
      self.assertEqual(axes_of(out), {'x'})
      return ()

    jax.make_jaxpr(shard_map(body, mesh=make_mesh(4), in_specs=(P('x'), P()),
                             out_specs=()))(data, b[0])
