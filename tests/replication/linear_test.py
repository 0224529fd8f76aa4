# SPDX-License-Identifier: Apache-2.0
"""Linear solves and linear_call in shard_map with check_rep=True."""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax.custom_derivatives import linear_call
import jax.numpy as jnp
from jax.scipy.sparse.linalg import bicgstab
from jax.scipy.sparse.linalg import cg
from jax.scipy.sparse.linalg import gmres
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import eight_devices
from testing.sharding import smap

jax.config.parse_flags_with_absl()
eight_devices()

# What pristine JAX says.
NO_RULE = '^NotImplementedError: No replication rule for'


A = np.array([[4, 1, 0, .5], [1, 3, 1, 0], [0, 1, 5, 1], [.5, 0, 1, 4]],
             np.float32)
B = np.array([1, 2, 3, 4], np.float32)


def richardson(matvec, b):
  return lax.scan(lambda x, _: (x + .2 * (b - matvec(x)), None), b, None,
                  length=60)[0]


def distributed(solve):
  """Solves with the columns of a shared out; every device has all of x."""
  def f(a, b):
    mine = lax.axis_index('i') * 2 + jnp.arange(2)
    return solve(lambda x: lax.psum(a @ x[mine], 'i'), b)
  return smap((P(None, 'i'), P()), P())(f)


class DistributedTest(jtu.JaxTestCase):

  @red("^ValueError: shard_map applied to the function 'f' was given "
       'out_specs which require replication')
  @parameterized.named_parameters(
      ('_custom_linear_solve', lambda matvec, b: lax.custom_linear_solve(
          matvec, b, richardson, symmetric=True)),
      ('_cg', lambda matvec, b: cg(matvec, b)[0]),
  )
  def test_solution_is_replicated(self, solve):
    f = distributed(solve)
    x = jax.jit(f)(A, B)
    self.assertAllClose(x, np.linalg.solve(A, B), rtol=1e-3,
                        check_dtypes=False)
    c = np.array([1, -1, 2, .5], np.float32)
    da, db = jax.jit(jax.grad(lambda a, b: jnp.sum(f(a, b) * c), (0, 1)))(A, B)
    want = jax.grad(lambda a, b: jnp.sum(jnp.linalg.solve(a, b) * c),
                    (0, 1))(A, B)
    self.assertAllClose(db, want[1], rtol=1e-3, check_dtypes=False)
    self.assertAllClose(da, want[0], rtol=2e-3, atol=1e-3, check_dtypes=False)


class SolversTest(jtu.JaxTestCase):
  """Each device solves a system of its own, with a shared matrix."""

  @parameterized.named_parameters(('_cg', cg), ('_gmres', gmres),
                                  ('_bicgstab', bicgstab))
  def test_forward_and_gradient(self, solver):
    f = smap((P(), P('i')), P('i'))(
        lambda a, b: solver(lambda x: a @ x, b[0])[0][None])
    bs = np.stack([B, B[::-1] * .5])
    x = jax.jit(f)(A, bs)
    self.assertAllClose(x, np.linalg.solve(A, bs.T).T, rtol=1e-3,
                        check_dtypes=False)
    da = jax.jit(jax.grad(lambda a: f(a, bs).sum()))(A)
    want = jax.grad(lambda a: jnp.linalg.solve(a, bs.T).sum())(A)
    self.assertAllClose(da, want, rtol=2e-3, atol=1e-3, check_dtypes=False)

  @red(NO_RULE)
  def test_custom_root(self):
    def newton(f, x0):
      df = jax.grad(lambda x: f(x).sum())
      return lax.while_loop(lambda c: c[1] < 8,
                            lambda c: (c[0] - f(c[0]) / df(c[0]), c[1] + 1),
                            (x0, 0))[0]
    f = smap((P('i'), P()), P('i'))(lambda x, w: lax.custom_root(
        lambda y: y ** 3 - w * x, jnp.ones_like(x), newton,
        lambda g, y: y / g(jnp.ones_like(y))))
    x, w = np.array([1., 8., 2., 4.], np.float32), np.float32(2.)
    self.assertAllClose(jax.jit(f)(x, w), np.cbrt(2 * x), rtol=1e-4,
                        check_dtypes=False)
    dw = jax.jit(jax.grad(lambda w: f(x, w).sum()))(w)
    self.assertAllClose(dw, (np.cbrt(2 * x) / 6).sum(), rtol=1e-4,
                        check_dtypes=False)

  @red(NO_RULE)
  def test_linear_call(self):
    def f(r, l):
      return linear_call(lambda r, l: r * l, lambda r, ct: 10 * r * ct, r, l)
    g = smap((P(), P('i')), P('i'))(f)
    x = np.arange(4., dtype=np.float32)
    self.assertAllClose(jax.jit(g)(2., x), 2 * x, check_dtypes=False)
    transpose = jax.linear_transpose(lambda x: g(2., x), x)
    self.assertAllClose(jax.jit(transpose)(x)[0], 20 * x, check_dtypes=False)

  @red(NO_RULE)
  def test_linear_call_with_a_divergent_collective_is_refused(self):
    def f(x):
      call = lambda: linear_call(lambda r, l: lax.psum(l, 'i'),
                                 lambda r, ct: lax.psum(ct, 'i'), (), x)
      return lax.cond(x[0] > 0, call, lambda: x)
    with self.assertRaisesRegex(ValueError, "psum over mesh axis 'i'"):
      jax.make_jaxpr(smap(P('i'), P('i'))(f))(np.arange(4.))


class GuardTest(jtu.JaxTestCase):

  def test_solve_of_varying_matrices(self):
    f = smap((P('i'), P()), P('i'))(
        lambda a, b: jnp.linalg.solve(a[0], b)[None])
    a = np.stack([A, A + np.eye(4, dtype=np.float32)])
    want = np.stack([np.linalg.solve(m, B) for m in a])
    self.assertAllClose(jax.jit(f)(a, B), want, rtol=1e-4, check_dtypes=False)
    db = jax.jit(jax.grad(lambda b: f(a, b).sum()))(B)
    want = sum(np.linalg.solve(m.T, np.ones(4)) for m in a)
    self.assertAllClose(db, want, rtol=1e-4, check_dtypes=False)

  def test_varying_solution_is_not_replicated(self):
    f = smap((P('i'), P()), P())(lambda a, b: jnp.linalg.solve(a[0], b))
    with self.assertRaisesRegex(ValueError, 'out_specs'):
      jax.jit(f)(np.stack([A, A]), B)
