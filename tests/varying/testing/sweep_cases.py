# SPDX-License-Identifier: Apache-2.0
"""Public functions to call inside shard_map, with arguments, and an oracle.

`table` holds some hundreds of functions, each with the kinds of its arguments.
Arguments vary along mesh axes or are shared, in the mixtures that `mixtures`
gives; `Placed` lays a mixture out. `parts_of` makes of a function what is
compared: its values, its gradients, its derivative in one direction. The oracle
is the same function of each device's block, outside of shard_map. Gradients
with respect to what devices share are the sum of theirs.

Imported by sweep_test.py, which lies beside it and takes a sample,
and by benchmarks/shard_map_sweep.py, which takes all.
"""
import jax
from jax import lax
from jax import random
import jax.numpy as jnp
import jax.scipy as jsp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import SUMS

DEVICES = 4


def values(kind, seed):
  """A block of the kind that a letter names."""
  rng = np.random.RandomState(seed)
  wide = jax.config.jax_enable_x64
  real = np.float64 if wide else np.float32
  f = lambda *shape: rng.uniform(0.2, 0.9, shape).astype(real)
  return {
      'S': lambda: f(), 'V': lambda: f(6), 'M': lambda: f(4, 4),
      'R': lambda: f(3, 5),  # a rectangular matrix
      'D': lambda: f(4, 4) + 3 * np.eye(4, dtype=real),
      'H': lambda: (lambda a: a @ a.T + 2 * np.eye(4, dtype=real))(
          f(4, 4)),
      'T': lambda: f(2, 3, 8, 8),  # images
      'K': lambda: f(4, 3, 3, 3),  # kernels
      'I': lambda: rng.randint(0, 6, (6,)).astype(np.int32),
      'J': lambda: np.int32(rng.randint(0, 4)),
      'B': lambda: rng.uniform(size=6) > 0.5,
      'W': lambda: rng.permutation(6).astype(real) + f(6) / 4,
      'U': lambda: np.array([rng.randint(1 << 30), 7], np.uint32),  # a key
      'Z': lambda: f(6) + 1j * f(6),
  }[kind]()


def unary(prefix, module, names, kind='V'):
  return {f'{prefix}.{n}': (getattr(module, n), kind)
          for n in names.split() if hasattr(module, n)}


def key(data):
  return random.wrap_key_data(data, impl='threefry2x32')


def sampled(name, *kinds, **kwargs):
  sample = getattr(random, name, None)
  if sample is None:
    return {}
  return {f'random.{name}': (
      lambda k, *args: sample(key(k), *args, **kwargs), 'U' + ''.join(kinds))}


def newton(f, y0):
  solve = lambda g, y: lax.fori_loop(
      0, 8, lambda _, y: y - g(y) / jax.jvp(g, (y,), (jnp.ones_like(y),))[1], y)
  return lax.custom_root(f, y0, solve, lambda g, y: y / g(jnp.ones_like(y)))


def sparse_solver(name, **kwargs):
  solver = getattr(jsp.sparse.linalg, name)
  return lambda a, b: solver(lambda x: a @ x, b[:4], **kwargs)[0]


def odeint(y, k):
  from jax.experimental.ode import odeint as solve
  return solve(lambda y, t, k: -k[0] * y, y, jnp.linspace(0., 1., 3), k)


def linear_solve(a, b):
  solve = lambda matvec, b: jnp.linalg.solve(a, b)
  return lax.custom_linear_solve(
      lambda x: a @ x, b[:4], solve, lambda vecmat, b: jnp.linalg.solve(a.T, b))


def converted(x, w):
  f, consts = jax.closure_convert(lambda y: jnp.sin(y * w), x)
  return f(x, *consts)


@jax.custom_vjp
def clipped(x, w):
  return x * w


clipped.defvjp(lambda x, w: (x * w, (x, w)),
               lambda r, g: (g * r[1], jnp.broadcast_to(
                   jnp.sum(g * r[0], keepdims=True), r[1].shape)
                   if np.shape(r[1]) != np.shape(g) else g * r[0]))


def table():
  """Functions by name, each with the kinds of its arguments."""
  t = {}
  t.update(unary('jnp', jnp, '''
      sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh exp exp2
      expm1 log log1p log2 log10 sqrt cbrt square reciprocal abs sign floor ceil
      rint trunc fix nan_to_num sinc i0 positive negative degrees radians
      isfinite isnan signbit cumsum cumprod cummax cummin nancumsum nancumprod
      cumulative_sum cumulative_prod sum prod max min mean std var median ptp
      argmax argmin argsort sort unique_values all any count_nonzero nansum
      nanmean nanmax nanmin nanmedian nanstd nanvar nanargmax flip diff ediff1d
      gradient flatnonzero_ atleast_2d ravel trapezoid spacing packbits_ angle
      real imag conj frexp modf sort_complex isreal unwrap vander poly
      bartlett_ i0 hanning_ logical_not diag diagflat'''))
  t.update(unary('jnp', jnp, '''
      linalg_ trace tril triu diagonal fliplr flipud rot90 transpose cov
      corrcoef nanprod matrix_transpose''', 'M'))
  two = '''add subtract multiply divide power maximum minimum fmax fmin arctan2
      hypot logaddexp logaddexp2 mod remainder fmod floor_divide true_divide
      copysign nextafter heaviside ldexp_ equal less greater_equal isclose
      convolve correlate dot inner outer kron vdot cross_ polyadd polymul
      polyval divmod float_power append allclose array_equal tensordot_
      polysub'''
  t.update(unary('jnp', jnp, two, 'VV'))
  t.update(unary('jnp', jnp, 'matmul dot vdot inner kron tensordot', 'MM'))
  t.update(unary('jnp.linalg', jnp.linalg, '''
      inv det slogdet qr svd pinv norm cond matrix_rank eigvalsh_ matrix_norm
      svdvals trace diagonal''', 'D'))
  t.update(unary('jnp.linalg', jnp.linalg, 'cholesky eigh eigvalsh', 'H'))
  t.update(unary('jnp.linalg', jnp.linalg, 'solve tensordot matmul', 'DM'))
  t.update(unary('jnp.linalg', jnp.linalg, 'vecdot outer', 'VV'))
  t.update(unary('jnp.fft', jnp.fft, '''
      fft ifft rfft irfft hfft ihfft fftshift ifftshift'''))
  t.update(unary('jnp.fft', jnp.fft, 'fft2 ifft2 rfft2 irfft2 fftn rfftn', 'M'))
  t.update(unary('nn', jax.nn, '''
      relu relu6 sigmoid softplus soft_sign silu swish log_sigmoid leaky_relu
      hard_sigmoid hard_silu hard_tanh elu celu selu gelu glu softmax
      log_softmax logsumexp standardize sparse_plus sparse_sigmoid squareplus
      mish identity tanh'''))
  t.update(unary('special', jsp.special, '''
      erf erfc erfinv expit logit gammaln gamma digamma entr exp1 expi i0 i0e
      i1 i1e log_ndtr log_softmax logsumexp ndtr ndtri softmax spence
      factorial'''))
  t.update(unary('special', jsp.special, '''
      betaln beta xlogy xlog1py zeta gammainc gammaincc rel_entr kl_div
      poch'''.replace('zeta', ''), 'VV'))
  t.update(unary('special', jsp.special, 'betainc hyp1f1', 'VVV'))
  t.update(unary('special', jsp.special, '''
      dawsn erfcx fresnel gammasgn sici wofz'''))
  t.update(unary('special', jsp.special, 'boxcox boxcox1p owens_t', 'VV'))
  t.update(unary('jnp', jnp, 'nanquantile nanpercentile', 'VS'))
  t.update(unary('jsp.linalg', jsp.linalg, 'solve_sylvester', 'DDM'))
  t.update(unary('jsp.linalg', jsp.linalg, '''
      det inv expm lu lu_factor qr polar sqrtm_ schur_ svd hessenberg_ toeplitz_
      '''.replace('polar', ''), 'D'))
  t.update(unary('jsp.linalg', jsp.linalg, 'cholesky eigh', 'H'))
  t.update(unary('jsp.linalg', jsp.linalg, 'solve solve_triangular', 'DM'))
  t.update(unary('jsp.linalg', jsp.linalg, 'toeplitz', 'VV'))
  t.update(unary('stats.norm', jsp.stats.norm, '''
      pdf logpdf cdf logcdf sf ppf'''))
  for d, names, kinds in (
      ('beta', 'pdf logpdf', 'VVV'), ('gamma', 'pdf cdf', 'VV'),
      ('t', 'logpdf', 'VV'), ('poisson', 'logpmf_', 'VV'),
      ('expon', 'pdf', 'VV'), ('cauchy', 'pdf', 'VV'),
      ('laplace', 'cdf', 'VV'), ('logistic', 'ppf', 'V'),
      ('chi2', 'logpdf', 'VV'), ('dirichlet', 'logpdf_', 'VV')):
    t.update(unary(f'stats.{d}', getattr(jsp.stats, d), names, kinds))
  t.update(unary('lax', lax, '''
      sin cos tan asin atan exp log rsqrt logistic erf erf_inv lgamma digamma
      bessel_i0e bessel_i1e cumsum cumprod cummax cummin cumlogsumexp neg floor
      is_finite cbrt tanh expm1 log1p'''))
  t.update(unary('lax', lax, '''
      add sub mul div rem pow max min atan2 igamma igammac nextafter eq lt
      complex zeta_ random_gamma_grad igamma_grad_a'''.replace(
          'igamma_grad_a', ''), 'VV'))
  t.update(unary('lax', lax, 'betainc', 'VVV'))

  seg = lambda f: (lambda x, i: f(x, i, num_segments=6))
  t.update({f'ops.{n}': (seg(getattr(jax.ops, n)), 'VI') for n in (
      'segment_sum', 'segment_max', 'segment_min', 'segment_prod')})
  t.update({f'jnp.at.{n}': (
      lambda x, i, y, n=n: getattr(x.at[i[0]], n)(y[0]), 'VIV') for n in (
          'set', 'add', 'multiply', 'min', 'max', 'divide', 'power')})
  t.update({
      'lu_solve': (lambda a, b: jsp.linalg.lu_solve(
          jsp.linalg.lu_factor(a), b), 'DM'),
      'cho_solve': (lambda a, b: jsp.linalg.cho_solve(
          jsp.linalg.cho_factor(a), b), 'HM'),
      'jsp.polar': (lambda a: jsp.linalg.polar(a), 'D'),
      'jsp.polar_qdwh': (lambda a: jsp.linalg.polar(a, method='qdwh'), 'D'),
      'jsp.sqrtm': (lambda a: jnp.real(jsp.linalg.sqrtm(a)), 'D', 'forward'),
      'jsp.schur': (lambda a: jsp.linalg.schur(a), 'D', 'forward'),
      'jsp.hessenberg': (lambda a: jsp.linalg.hessenberg(a), 'D', 'forward'),
      'eigh_tridiagonal': (lambda d, e: jsp.linalg.eigh_tridiagonal(
          d, e[:5], eigvals_only=True), 'VV', 'forward'),
      'jsp.block_diag': (lambda a, b: jsp.linalg.block_diag(a, b), 'MM'),
      'expm_frechet': (lambda a, b: jsp.linalg.expm_frechet(a, b), 'DM'),
      'expm': (lambda a: jsp.linalg.expm(a * 3.), 'M'),
      'lstsq': (lambda a, b: jnp.linalg.lstsq(a, b)[0], 'DM'),
      'matrix_power': (lambda a: jnp.linalg.matrix_power(a, 3), 'D'),
      'svd_thin': (lambda a: jnp.linalg.svd(a, full_matrices=False), 'D'),
      'multi_dot': (lambda a, b: jnp.linalg.multi_dot([a, b, a]), 'MM'),
      'eig': (lambda a: jnp.abs(jnp.linalg.eigvals(a)), 'D', 'forward'),
      'tridiagonal_solve': (lambda a, b: lax.linalg.tridiagonal_solve(
          a, 3. + a, a, b[:, None]), 'VV'),
      'triangular_solve': (lambda a, b: lax.linalg.triangular_solve(
          a, b, left_side=True, lower=True), 'DM'),
      'householder': (lambda a: lax.linalg.householder_product(
          *(lambda q: (q[0], q[1]))(lax.linalg.geqrf(a))), 'D', 'forward'),
      'qdwh': (lambda a: lax.linalg.qdwh(a)[0], 'D', 'forward'),
      'einsum': (lambda a, b: jnp.einsum('ij,jk->ik', a, b), 'MM'),
      'dot_general': (lambda a, b: lax.dot_general(
          a, b, (((1,), (0,)), ((), ()))), 'MM'),
      'conv': (lambda x, k: lax.conv(x, k, (1, 1), 'SAME'), 'TK'),
      'conv_transpose': (lambda x, k: lax.conv_transpose(
          x, k, (1, 1), 'SAME', dimension_numbers=('NCHW', 'OIHW', 'NCHW')),
                         'TK'),
      'signal.convolve': (lambda x, y: jsp.signal.convolve(x, y), 'VV'),
      'signal.fftconvolve': (lambda x, y: jsp.signal.fftconvolve(x, y), 'VV'),
      'signal.stft': (lambda x: jnp.abs(jsp.signal.stft(x, nperseg=4)[2]), 'V',
                      'forward'),
      'signal.detrend': (lambda x: jsp.signal.detrend(x), 'V'),
      'map_coordinates': (lambda a, c: jsp.ndimage.map_coordinates(
          a, [c[:3] * 3, c[3:] * 3], order=1), 'MV'),
      'reduce_window': (lambda x: lax.reduce_window(
          x, 0., lax.add, (2,), (1,), 'SAME'), 'V'),
      'max_pool': (lambda x: lax.reduce_window(
          x, -jnp.inf, lax.max, (2,), (2,), 'VALID'), 'V'),
      'reduce': (lambda x: lax.reduce(x, 0., lambda a, b: a + b, (0,)), 'V'),
      'reduce_of_two': (lambda x, y: lax.reduce(
          (x, y), (0., 0.), lambda a, b: (a[0] + b[0], a[1] + b[1]), (0,)),
                        'VV', 'forward'),
      'top_k': (lambda x: lax.top_k(x, 3), 'W'),
      'approx_max_k': (lambda x: lax.approx_max_k(x, 3), 'W'),
      'sort_two': (lambda x, y: lax.sort((x, y), num_keys=1), 'WV'),
      'sort_key_val': (lambda x, y: lax.sort_key_val(x, y), 'WV'),
      'lexsort': (lambda x, y: jnp.lexsort((x, y)), 'WV'),
      'searchsorted': (lambda x, y: jnp.searchsorted(jnp.sort(x), y), 'VV'),
      **{f'searchsorted_{m}': (lambda x, y, m=m: jnp.searchsorted(
          jnp.sort(x), y, method=m), 'VV') for m in (
              'scan_unrolled', 'sort', 'compare_all')},
      'histogram': (lambda x, w: jnp.histogram(
          x, bins=4, range=(0., 1.), weights=w), 'VV', 'forward'),
      'histogram_bins': (lambda x, b: jnp.histogram(x, bins=jnp.sort(b)), 'VV'),
      'histogram2d': (lambda x, y: jnp.histogram2d(
          x, y, bins=3, range=[(0., 1.), (0., 1.)])[0], 'VV'),
      'histogram_bin_edges': (lambda x: jnp.histogram_bin_edges(x, 4), 'V'),
      'digitize': (lambda x, b: jnp.digitize(x, jnp.sort(b)), 'VV'),
      'bincount': (lambda i, w: jnp.bincount(i, w, length=6), 'IV'),
      'interp': (lambda x, xp, fp: jnp.interp(x, jnp.sort(xp), fp), 'VVV'),
      'interp_scalar': (lambda x, fp: jnp.interp(
          x, jnp.linspace(0., 1., 6), fp), 'SV'),
      'unique': (lambda x: jnp.unique(x, size=6), 'I'),
      'unique_all': (lambda x: jnp.unique(
          x, size=6, return_inverse=True, return_counts=True), 'I'),
      'intersect1d': (lambda x, y: jnp.intersect1d(x, y, size=6), 'II'),
      'union1d': (lambda x, y: jnp.union1d(x, y, size=12), 'II'),
      'setdiff1d': (lambda x, y: jnp.setdiff1d(x, y, size=6), 'II'),
      'isin': (lambda x, y: jnp.isin(x, y), 'II'),
      'nonzero': (lambda x: jnp.nonzero(x > 0.5, size=6), 'V'),
      'argwhere': (lambda x: jnp.argwhere(x > 0.5, size=6), 'V'),
      'compress': (lambda b, x: jnp.compress(b, x, size=6), 'BV'),
      'extract': (lambda b, x: jnp.extract(b, x, size=6), 'BV'),
      'where': (lambda b, x, y: jnp.where(b, x, y), 'BVV'),
      'select': (lambda b, x, y: jnp.select([b, ~b], [x, y], 1.), 'BVV'),
      'choose': (lambda i, x, y: jnp.choose(
          i % 2, [x, y], mode='clip'), 'IVV'),
      'piecewise': (lambda x, y: jnp.piecewise(
          x, [x < .4, x > .7], [jnp.sin, lambda v: v * y[0], 2.]), 'VV'),
      'clip': (lambda x, a, b: jnp.clip(x, a / 2, b + .2), 'VSS'),
      'lax.clamp': (lambda a, x, b: lax.clamp(a / 2, x, b + .2), 'SVS'),
      'take': (lambda x, i: jnp.take(x, i), 'VI'),
      'take_along_axis': (lambda x, i: jnp.take_along_axis(x, i, 0), 'VI'),
      'put_along_axis': (lambda x, i, y: jnp.put_along_axis(
          x, i[:1], y[:1], 0, inplace=False), 'VIV'),
      'gather': (lambda x, i: x[i], 'VI'),
      'index_scalar': (lambda x, i: x[i], 'VJ'),
      'dynamic_slice': (lambda x, i: lax.dynamic_slice(x, (i,), (2,)), 'VJ'),
      'dynamic_update_slice': (lambda x, y, i: lax.dynamic_update_slice(
          x, y[:2], (i,)), 'VVJ'),
      'dynamic_index': (lambda x, i: lax.dynamic_index_in_dim(x, i), 'VJ'),
      'dynamic_update_index': (lambda x, y, i: lax.dynamic_update_index_in_dim(
          x, y[0], i, 0), 'VVJ'),
      'segment_sum_sorted': (lambda x, i: jax.ops.segment_sum(
          x, jnp.sort(i), 6, indices_are_sorted=True), 'VI'),
      'concatenate': (lambda x, y: jnp.concatenate([x, y]), 'VV'),
      'stack': (lambda x, y: jnp.stack([x, y]), 'VV'),
      'hstack_block': (lambda x, y: jnp.block([[x, y], [y, x]]), 'VV'),
      'pad': (lambda x, c: jnp.pad(x, 2, constant_values=c), 'VS'),
      'pad_modes': (lambda x: [jnp.pad(x, 2, mode=m) for m in (
          'edge', 'reflect', 'wrap', 'linear_ramp', 'mean')], 'V'),
      'lax.pad': (lambda x, c: lax.pad(x, c, [(1, 2, 1)]), 'VS'),
      'roll': (lambda x, i: jnp.roll(x, i), 'VJ'),
      'repeat': (lambda x, i: jnp.repeat(x, i, total_repeat_length=8), 'VI'),
      'tile_broadcast': (lambda x: jnp.tile(jnp.broadcast_to(x, (2, 6)), 2),
                         'V'),
      'insert_delete': (lambda x, s: jnp.delete(jnp.insert(x, 2, s), 1), 'VS'),
      'percentile': (lambda x, q: jnp.percentile(x, q * 100), 'VS'),
      'quantile': (lambda x, q: jnp.quantile(x, q, method='linear'), 'VS'),
      'average': (lambda x, w: jnp.average(x, weights=w), 'VV'),
      'apply_along_axis': (lambda a, s: jnp.apply_along_axis(
          lambda r: r * s, 0, a), 'MS'),
      'vectorize': (lambda a, b: jnp.vectorize(
          lambda x, y: jnp.dot(x, y), signature='(n),(n)->()')(a, b), 'MM'),
      'vmap_over': (lambda a, v: jax.vmap(lambda r: jnp.sin(r) @ v[:4])(a),
                    'MV'),
      'polyfit': (lambda x, y: jnp.polyfit(x, y, 2), 'VV', 'forward'),
      'roots': (lambda c: jnp.abs(jnp.roots(c, strip_zeros=False)), 'V',
                'forward'),
      'polydiv': (lambda x, y: jnp.polydiv(x, y[:3]), 'VV'),
      'fromfunction': (lambda s: jnp.fromfunction(lambda i, j: i * s + j,
                                                  (2, 3)), 'S'),
      'linspace': (lambda a, b: jnp.linspace(a, b, 5), 'SS'),
      'geomspace': (lambda a, b: jnp.geomspace(a, b, 5), 'SS'),
      'logspace': (lambda a, b: jnp.logspace(a, b, 5), 'SS'),
      'full_eye': (lambda s: jnp.full((3,), s) + jnp.eye(3) * s, 'S'),
      'one_hot': (lambda i: jax.nn.one_hot(i, 6), 'I'),
      'softmax_where': (lambda x, b: jax.nn.softmax(
          x, where=b, initial=-jnp.inf), 'VB', 'forward'),
      'logsumexp_b': (lambda x, y: jsp.special.logsumexp(x, b=y), 'VV'),
      'logmeanexp': (lambda x: jax.nn.logmeanexp(x)
                     if hasattr(jax.nn, 'logmeanexp') else x, 'V'),
      'attention': (lambda q, k: jax.nn.dot_product_attention(
          q[0, :, :, None], k[0, :, :, None], q[0, :, :, None]), 'TT'),
      'polygamma': (lambda x: jsp.special.polygamma(1, x), 'V'),
      'multigammaln': (lambda x: jsp.special.multigammaln(x + 3., 2), 'V'),
      'zeta': (lambda x, q: jsp.special.zeta(x + 1.5, q), 'VV', 'forward'),
      'expn': (lambda x: jsp.special.expn(2, x), 'V'),
      'bessel_jn': (lambda x: jsp.special.bessel_jn(x, v=2), 'V'),
      'hyp2f1': (lambda a, b, c, x: jsp.special.hyp2f1(a, b, c, x / 2), 'VVVV',
                 'forward') if hasattr(jsp.special, 'hyp2f1') else
                (lambda x: x, 'V'),
      'sph_harm': (lambda x: x, 'V'),
      'bernoulli': (lambda n: jsp.special.bernoulli(4) * n, 'S'),
      'image.resize': (lambda x: jax.image.resize(
          x, (2, 3, 5, 11), 'linear'), 'T'),
      'image.resize_cubic': (lambda x: jax.image.resize(
          x, (2, 3, 16, 4), 'cubic'), 'T'),
      'image.resize_nearest': (lambda x: jax.image.resize(
          x, (2, 3, 5, 5), 'nearest'), 'T'),
      'scale_and_translate': (lambda x, s: jax.image.scale_and_translate(
          x, (2, 3, 8, 8), (2, 3), jnp.stack([s, s]) + 1.,
          jnp.stack([s, s]), 'linear'), 'TS'),
      'cg': (sparse_solver('cg'), 'HV'),
      'bicgstab': (sparse_solver('bicgstab'), 'HV'),
      'gmres': (sparse_solver('gmres'), 'HV'),
      'gmres_incremental': (sparse_solver(
          'gmres', solve_method='incremental'), 'HV'),
      'odeint': (odeint, 'VV', 'no jvp'),
      'custom_root': (lambda a, y: newton(lambda x: x ** 2 - a, y), 'SS'),
      'custom_linear_solve': (linear_solve, 'DV'),
      'closure_convert': (converted, 'VV'),
      'custom_vjp': (clipped, 'VV', 'no jvp'),
      'associative_scan': (lambda x, y: lax.associative_scan(
          lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1]), (x, y)), 'VV'),
      'map': (lambda x, w: lax.map(lambda v: jnp.sin(v) * w[0], x), 'VV'),
      'scan': (lambda x, c: lax.scan(
          lambda c, v: (c * v, c + v), c, x), 'VS'),
      'scan_carry_replicated': (lambda x: lax.scan(
          lambda c, v: (c + v, c), 0., x), 'V'),
      'while': (lambda x, s: lax.while_loop(
          lambda c: c[0] < 2. * s, lambda c: (c[0] + .3, c[1] * s), (s, x)),
                'VS', 'no grad'),
      'fori_traced': (lambda i, x: lax.fori_loop(
          0, i, lambda _, c: jnp.sin(c), x), 'JV', 'no grad'),
      'cond': (lambda b, x, y: lax.cond(
          b[0], lambda: x * 2., lambda: y + 1.), 'BVV'),
      'switch': (lambda i, x, y: lax.switch(
          i, [lambda: x, lambda: y, lambda: x * y]), 'JVV'),
      'checkpoint': (jax.checkpoint(lambda x, w: jnp.sin(jnp.sin(x) * w)),
                     'VV'),
      'jit': (jax.jit(lambda x, w: jnp.sin(x) * w), 'VV'),
      'hessian': (lambda x, w: jax.hessian(  # at a point that varies
          lambda x: jnp.sum(jnp.sin(x * w)))(x + 0. * w), 'VV'),
      'jacfwd': (lambda x, w: jax.jacfwd(lambda x: jnp.sin(x * w))(x), 'VV'),
      'jacrev': (lambda x, w: jax.jacrev(lambda x: jnp.sin(x * w))(
          x + 0. * w), 'VV'),
      'complex_mul': (lambda z, w: z * w, 'ZZ', 'forward'),
      'complex_fft': (lambda z: jnp.fft.ifft(jnp.fft.fft(z) * 2), 'Z',
                      'forward'),
      'stop_gradient': (lambda x, y: lax.stop_gradient(x) * y, 'VV'),
      'bitcast': (lambda x: lax.bitcast_convert_type(x, jnp.int32), 'V'),
      'reduce_precision': (lambda x: lax.reduce_precision(x, 5, 10), 'V'),
      'optimization_barrier': (lambda x, y: lax.optimization_barrier((x, y)),
                               'VV'),
      'population_count': (lambda i: lax.population_count(i), 'I'),
      'shift': (lambda i, j: lax.shift_left(i, j % 3), 'II'),
      'gcd_lcm': (lambda i, j: (jnp.gcd(i, j), jnp.lcm(i, j)), 'II'),
      'bitwise': (lambda i, j: (i & j, i | j, i ^ j, ~i), 'II'),
      'integer_power': (lambda x: lax.integer_power(x, 3), 'V'),
      'rank': (lambda x: jsp.stats.rankdata(x), 'W'),
      'mode': (lambda x: jsp.stats.mode(x), 'V'),
      'gaussian_kde': (lambda d, x: jsp.stats.gaussian_kde(d)(x), 'VV'),
      'multivariate_normal': (lambda x, m, c: jsp.stats.multivariate_normal
                              .logpdf(x[:4], m[:4], c), 'VVH'),
      'nbinom_trunc': (lambda x: jsp.stats.truncnorm.logpdf(x, -1., 1.), 'V',
                       # 0.6.0's XLA dies of the gradient, on pristine JAX too.
                       'no grad' if jax.__version_info__ < (0, 7) else ''),
      'minimize': (lambda x, s: jsp.optimize.minimize(
          lambda v: jnp.sum((v - s) ** 2), x, method='BFGS').x, 'VS',
                   'no grad'),
      'rgi': (lambda a, x: jsp.interpolate.RegularGridInterpolator(
          (jnp.arange(4.), jnp.arange(4.)), a)(x.reshape(3, 2) * 3), 'MV'),
      'trapezoid': (lambda y, x: jsp.integrate.trapezoid(y, jnp.sort(x)), 'VV'),
      'cluster.vq': (lambda a, b: jsp.cluster.vq.vq(a, b), 'MM', 'forward'),
      'key_ops': (lambda k, i: random.key_data(random.fold_in(
          random.split(key(k), 3)[1], i)), 'UJ'),
  })
  t.pop('sph_harm')
  for case in (
      sampled('uniform', shape=(6,)), sampled('normal', shape=(6,)),
      sampled('bits', shape=(6,)), sampled('permutation', 'V'),
      sampled('choice', 'V', shape=(3,)), sampled('bernoulli', 'V'),
      sampled('categorical', 'V'), sampled('truncated_normal', 'V', 'S'),
      sampled('exponential', shape=(6,)), sampled('laplace', shape=(6,)),
      sampled('gumbel', shape=(6,)), sampled('logistic', shape=(6,)),
      sampled('cauchy', shape=(6,)), sampled('rademacher', shape=(6,)),
      sampled('gamma', 'V'), sampled('loggamma', 'V'),
      sampled('beta', 'V', 'V'), sampled('dirichlet', 'V'),
      sampled('poisson', 'V'), sampled('t', 'V'), sampled('chisquare', 'V'),
      sampled('f', 'V', 'V'), sampled('weibull_min', 'V', 'V'),
      sampled('pareto', 'V'), sampled('rayleigh', 'V'),
      sampled('wald', 'V'), sampled('geometric', 'V'),
      sampled('triangular', 'S', 'S', 'S'), sampled('maxwell', shape=(6,)),
      sampled('double_sided_maxwell', 'S', 'S'), sampled('ball', d=3),
      sampled('generalized_normal', 'S'), sampled('orthogonal', n=3),
      sampled('lognormal', 'V'), sampled('multivariate_normal', 'V', 'V')):
    t.update(case)
  t.pop('random.multivariate_normal', None)
  t['random.multivariate_normal'] = (
      lambda k, m, c: random.multivariate_normal(key(k), m[:4], c), 'UVH')
  t['random.binomial'] = (
      lambda k, n, p: random.binomial(key(k), n * 10., p), 'UVV', 'forward')
  t['random.multinomial'] = (
      lambda k, p: random.multinomial(key(k), 10., p / p.sum()), 'UV',
      'forward')
  if jax.__version_info__ >= (0, 10):  # eigenvectors
    t['eigh_tridiagonal_vectors'] = (
        lambda d, e: jsp.linalg.eigh_tridiagonal(d, e[:5]), 'VV', 'forward')
  if not hasattr(random, 'multinomial'):
    t.pop('random.multinomial')
  t['random.randint'] = (
      lambda k, j: random.randint(key(k), (6,), 0, j + 5), 'UJ')
  t['random.triangular'] = (
      lambda k, a, b: random.triangular(key(k), 0., a, b + 1., (6,)), 'USS')
  t['random.uniform_bounds'] = (
      lambda k, a, b: random.uniform(key(k), (6,), minval=a, maxval=b + 1.),
      'USS')
  t['random.categorical_several'] = (
      lambda k, p: random.categorical(key(k), p, shape=(3, 4)), 'UM')
  t['random.shuffled'] = (
      lambda k, m: random.permutation(key(k), m, axis=1, independent=True),
      'UM')
  return t


def mixtures(n, two):
  """Along which axes each argument varies: all, each alone, all but each."""
  if two:
    out = [('xy',) * n, tuple('xy'[i % 2] for i in range(n)),
           tuple(('xy', 'x', '')[i % 3] for i in range(n)),
           tuple(('', 'y', 'xy')[i % 3] for i in range(n))]
  else:
    out = [('x',) * n]
    for i in range(n):
      out.append(tuple('x' if j == i else '' for j in range(n)))
      out.append(tuple('x' if j != i else '' for j in range(n)))
  return [m for m in dict.fromkeys(out) if any(m)]


def floating(x):
  return np.issubdtype(np.asarray(x).dtype, np.floating)


def measured(out):
  """A number that depends on all floating outputs."""
  total = 0.
  for i, y in enumerate(jax.tree.leaves(out)):
    y = jnp.asarray(y)
    if jnp.issubdtype(y.dtype, jnp.complexfloating):
      y = jnp.abs(y)
    if jnp.issubdtype(y.dtype, jnp.floating):
      total = total + jnp.sum(jnp.where(jnp.isfinite(y), y, 0.)) * (i + 1.)
  return total


def parts_of(f, kinds, limits):
  """The parts of a function that are compared.

  Args:
    f: the function.
    kinds: a letter for each of its arguments.
    limits: 'forward', 'no grad', 'no jvp' or ''.

  Returns:
    Functions of the arguments by name: 'forward', 'grad' and 'jvp', with ones
    as the direction; and which of the arguments are differentiated.
  """
  args = [values(k, i) for i, k in enumerate(kinds)]
  wrt = tuple(i for i, a in enumerate(args) if floating(a))
  parts = {'forward': f}
  if wrt and limits != 'forward':
    if limits != 'no grad':
      parts['grad'] = lambda *a: jax.grad(
          lambda *a: measured(f(*a)) + 0. * sum(a[i].sum() for i in wrt),
          wrt)(*a)
    if limits != 'no jvp':
      def push(*a):
        def g(*moving):
          full = list(a)
          for i, m in zip(wrt, moving):
            full[i] = m
          return [y for y in jax.tree.leaves(f(*full))
                  if jnp.issubdtype(jnp.result_type(y), jnp.inexact)]
        return jax.jvp(g, [a[i] for i in wrt],
                       [jnp.ones_like(args[i]) for i in wrt])[1]
      parts['jvp'] = push
  return parts, wrt


def sizes_of(two):
  """The mesh axes and their sizes."""
  return {'x': 2, 'y': 2} if two else {'x': DEVICES}


class Placed:
  """The arguments of a function, and which device has which.

  Attributes:
    mixture: for each argument, the mesh axes along which it varies.
    args: the arguments for shard_map.
    specs: their in_specs.
    out_specs: of a result that is stacked over the devices that differ.
    per_device: the arguments of each device that differs from another.
  """

  def __init__(self, kinds, mixture, sizes):
    blocks = [[values(k, 100 * d + i) for i, k in enumerate(kinds)]
              for d in range(DEVICES)]
    self.mixture = mixture
    used = [a for a in sizes if a in ''.join(mixture)]
    self._held = [
        [sum(c * (a in axes) * (2 if axes == 'xy' and a == 'x' else 1)
             for a, c in zip(used, coordinates)) for axes in mixture]
        for coordinates in np.ndindex(*(sizes[a] for a in used))]
    self.per_device = [
        [blocks[k][i] for i, k in enumerate(ks)] for ks in self._held]
    self.args = [np.stack([blocks[k][i] for k in range(
        int(np.prod([sizes[a] for a in axes])))]) if axes else blocks[0][i]
                 for i, axes in enumerate(mixture)]
    self.specs = tuple(P(tuple(axes)) if axes else P() for axes in mixture)
    self.out_specs = P(tuple(used))

  def specs_of(self, part, wrt):
    """The out_specs of a part: gradients lie as their arguments do."""
    if part == 'grad' and SUMS:
      return tuple(self.specs[i] for i in wrt)
    return self.out_specs

  def within(self, part):
    """A part as a function of what shard_map passes to its body."""
    def body(*args):
      out = part(*(a[0] if m else a for a, m in zip(args, self.mixture)))
      return jax.tree.map(lambda y: jnp.asarray(y)[None], out)
    return body

  def expected(self, part, wrt, results):
    """The results that shard_map should give.

    Args:
      part: the part's name.
      wrt: the arguments that are differentiated.
      results: what the part gives on each of `per_device`.

    Returns:
      The results, stacked, and added up over devices where they share what is
      differentiated.
    """
    want = jax.tree.map(lambda *ys: np.stack(ys), *results)
    if part != 'grad' or not SUMS:
      return want
    held = [[ks[i] for ks in self._held] for i in wrt]
    return [np.stack([sum(g for g, j in zip(gradients, ks) if j == k)
                      for k in sorted(set(ks))])
            for gradients, ks in zip(want, held)]


def difference(got, want):
  """The fault of the results; '' if they have none."""
  tolerance = 1e-7 if jax.config.jax_enable_x64 else 1e-3
  got, want = jax.tree.leaves(got), jax.tree.leaves(want)
  if len(got) != len(want):
    return f'wrong: {len(got)} results instead of {len(want)}'
  for a, b in zip(got, want):
    scale = np.max(np.abs(b)[np.isfinite(b)], initial=1.)
    if a.shape != b.shape or not np.allclose(
        a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
      return f'wrong: {np.ravel(a)[:4]} instead of {np.ravel(b)[:4]}'
  return ''
