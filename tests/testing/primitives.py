# SPDX-License-Identifier: Apache-2.0
"""Calls that bind the primitives of JAX, on small operands."""
import collections

import jax
from jax import lax
from jax._src.lax import linalg as src_linalg
from jax._src.lax import windowed_reductions as src_windows
from jax.extend.random import threefry_2x32
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
from varying.testing.common import equations

try:
  from jax import ffi
except ImportError:
  from jax.extend import ffi
F32 = np.float32
V = np.linspace(.1, .9, 4, dtype=F32)
M = (np.arange(16.).reshape(4, 4) / 16 + np.eye(4)).astype(F32)
S = (M @ M.T + np.eye(4)).astype(F32)
I = np.array([2, 0, 3, 1], np.int32)
B = np.array([True, False, True, False])
C = (V + 1j * V).astype(np.complex64)
ONE = F32(1.)
KEY = np.array([1, 2], np.uint32)
IMAGE = M[None, None]
linalg = lax.linalg


def window(op, start, pads='VALID'):
  return lambda x: lax.reduce_window(x, start, op, (2,), (2,), pads)


def grad(f):
  return lambda x: jax.grad(lambda x: jnp.sum(f(x) ** 2))(x)


def named(names, *args):
  return [(getattr(lax, n), *args) for n in names.split() if hasattr(lax, n)]


def on_key(f):
  return lambda k, *args: f(jax.random.wrap_key_data(k), *args)


# Functions with arguments; the primitives in their jaxprs are what is tested.
EXAMPLES = [
    *named('abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt '
           'ceil cos cosh digamma erf erfc erf_inv exp exp2 expm1 floor '
           'is_finite lgamma log log1p log2 logistic neg round rsqrt sign sin '
           'sinh sqrt square tan tanh reciprocal stop_gradient cumsum cumprod '
           'cummax cummin cumlogsumexp one_minus_square', V),
    *named('clz population_count bitwise_not', I),
    *named('real imag conj', C),
    *named('add sub mul div rem max min pow atan2 nextafter eq ne ge gt le lt '
           'complex igamma igammac zeta polygamma random_gamma_grad '
           'igamma_grad_a', V, V),
    *named('bitwise_and bitwise_or bitwise_xor shift_left mulhi '
           'shift_right_arithmetic shift_right_logical', I, I),
    (lax.betainc, V, V, V), (lambda x: lax.integer_pow(x, 3), V),
    (lax.clamp, ONE, V, ONE), (lax.select, B, V, V),
    (lambda x, y: lax.sort((x, y), num_keys=1), V, I),
    (lambda x: lax.top_k(x, 2), V), (lambda x: lax.approx_max_k(x, 2), V),
    (lambda x: lax.argmax(x, 0, np.int32), V),
    (lambda x: lax.argmin(x, 0, np.int32), V),
    (lambda x, i: lax.reduce(x, i, lambda a, b: a * b + a, (0,)), V, ONE),
    (jnp.sum, V), (jnp.prod, V), (jnp.max, V), (jnp.min, V), (jnp.any, B),
    (jnp.all, B),
    (lambda x: lax.reduce(x, np.int32(0), lax.bitwise_xor, (0,)), I),
    (lambda x: lax.reduce_precision(x, 5, 10), V),
    (lambda x: lax.broadcast_in_dim(x, (4, 4), (0,)), V),
    (lambda: lax.iota(np.int32, 4),),
    (lambda a, b: lax.concatenate([a, b], 0), V, V),
    (lambda a, b: jnp.stack([a, b]), V, V),
    (lambda a, p: lax.pad(a, p, [(1, 1, 0)]), V, ONE),
    (lambda x: lax.reshape(x, (2, 2)), V), (lambda x: lax.rev(x, (0,)), V),
    (lambda x: lax.squeeze(x, (0,)), V[None]), (jnp.unstack, V),
    (lambda x: lax.split(x, (1, 3)), V), (lambda x: jnp.tile(x, 2), V),
    (lambda x: lax.transpose(x, (1, 0)), M),
    (lambda x: lax.slice(x, (1,), (3,)), V),
    (lambda x, i: lax.dynamic_slice(x, (i,), (2,)), V, np.int32(1)),
    (lambda x, u, i: lax.dynamic_update_slice(x, u, (i,)), V, V[:2],
     np.int32(1)),
    (lambda x, i: jnp.asarray(x)[i], V, I),
    *[(lambda x, i, u, n=n: getattr(jnp.asarray(x).at[i], n)(u), V, I, V)
      for n in ('set', 'add', 'subtract', 'multiply', 'min', 'max')
      if n != 'subtract' or hasattr(lax, 'scatter_sub')],
    (lambda x, y: lax.optimization_barrier((x, y)), V, V),
    (lambda x: lax.convert_element_type(x, np.int32), V),
    (lambda x: lax.bitcast_convert_type(x, np.int32), V), (jnp.array, V),
    (jnp.copysign, V, V),
    (lambda a, b: lax.dot_general(a, b, (((1,), (0,)), ((), ()))), M, M),
    (lax.ragged_dot, M, np.stack([M, M]), np.array([1, 3], np.int32)),
    (lambda a, b: lax.conv(a, b, (1, 1), 'SAME'), IMAGE, IMAGE),
    (lambda x, i: lax.reduce_window(
        x, i, lambda a, b: a * b + a, (2,), (1,), 'VALID'), V, ONE),
    (window(lax.add, F32(0)), V), (window(lax.min, F32(np.inf)), V),
    (grad(window(lax.max, F32(-np.inf))), V),
    (lambda x: jax.jvp(window(lax.max, F32(-np.inf)), (x,), (x,)), V),
    (jnp.fft.fft, C),
    (lambda x: lax.after_all(lax.create_token(x)), V),
    (lambda x: jax.debug.print('{}', x), V),
    (lambda x: jax.debug.callback(lambda x: None, x), V),
    (lambda x, y: jax.linear_transpose(lambda x: (x + y) - y + x, x)(y), V, V),
    (jnp.linalg.cholesky, S), (jnp.linalg.eigh, S), (jnp.linalg.svd, M),
    (jnp.linalg.qr, M), (jnp.linalg.eig, M), (jax.scipy.linalg.lu, M),
    (jax.scipy.linalg.schur, M), (jax.scipy.linalg.hessenberg, M),
    (lambda a, b: linalg.triangular_solve(a, b, left_side=True), M, M),
    (linalg.tridiagonal_solve, V, V, V, V[:, None]), (linalg.tridiagonal, S),
    (linalg.householder_product, M, V),
    (lambda a, c: linalg.symmetric_product(a, c), M, M),
    (linalg.cholesky_update, S, V), (jnp.linalg.det, M),
    (lambda i: linalg.lu_pivots_to_permutation(i, 4), I),
    (lambda a: src_linalg.geqrf_p.bind(a), M), (src_linalg.geqp3, M, I),
    *[(lambda a: src_linalg.eigh_jacobi(a), S)
      for _ in (0,) if hasattr(src_linalg, 'eigh_jacobi')],
    *([(linalg.ormqr, M, V, M)] if hasattr(linalg, 'ormqr') else []),
    (on_key(lambda k: jax.random.key_data(jax.random.split(k))), KEY),
    (on_key(lambda k, d: jax.random.bits(jax.random.fold_in(k, d))), KEY,
     np.uint32(3)),
    (on_key(lambda k: jax.random.key_data(jax.random.clone(k))), KEY),
    (on_key(jax.random.gamma), KEY, V),
    (lambda s: jax.random.key_data(jax.random.key(s)), np.uint32(3)),
    (threefry_2x32, KEY, np.arange(4, dtype=np.uint32)),
    (lambda k: lax.rng_bit_generator(k, (3,)), np.arange(4, dtype=np.uint32)),
    (lambda a, b: lax.rng_uniform(a, b, (3,)), ONE, ONE),
    (jnp.sinc, V),
    *[(lambda a, b, p=p: p.bind(a, b), V, V)
      for p in (lax.eq_to_p, lax.le_to_p, lax.lt_to_p)],
    (lambda x, s: src_windows._select_and_scatter(
        x, lax.ge, (2,), (2,), [(0, 0)], s, ONE, lax.add), V, V[:2]),
    (ffi.ffi_call('not_called', jax.ShapeDtypeStruct((4,), F32)), V, V),
    *([(lambda a, b, s, t: lax.scaled_dot(a, b, lhs_scale=s, rhs_scale=t),
        M, M, M[:, :1], M[:1])] if hasattr(lax, 'scaled_dot') else []),
    (lambda a, b: jnp.searchsorted(a, b, method='compare_all'), V, V),
]


def examples():
  """For each primitive, equations with operands of different types."""
  found = collections.defaultdict(dict)
  for fun, *args in EXAMPLES:
    for eqn in equations(jax.make_jaxpr(fun)(*args).jaxpr):
      types = tuple(str(x.aval) for x in eqn.invars)
      if len(found[eqn.primitive]) < 3:
        found[eqn.primitive].setdefault(types, eqn)
  return {p: list(eqns.values()) for p, eqns in found.items()}


def bind(eqn, operands):
  params = eqn.primitive.get_bind_params(eqn.params)
  if isinstance(params, dict):
    out = eqn.primitive.bind(*operands, **params)
  else:
    out = eqn.primitive.bind(*params[0], *operands, **params[1])
  return out if eqn.primitive.multiple_results else [out]
