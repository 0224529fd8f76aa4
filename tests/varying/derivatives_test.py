# SPDX-License-Identifier: Apache-2.0
"""Transformations in shard_map with the check on, against one device.

A case (see `derivatives.py`) is applied inside shard_map, and
to each device's block outside of it: results must be the same.
"""
import functools

from absl.testing import parameterized
import jax
from jax import export
from jax._src import config as jax_config
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
import numpy as np
from testing import oracle
from testing.oracle import Summed
from testing.sharding import shard_map
from varying.testing.common import MESHES
from varying.testing.common import make_mesh
from varying.testing.derivatives import CASES
from varying.testing.derivatives import inputs
from varying.testing.derivatives_rules import WITHIN

jax.config.parse_flags_with_absl()


@functools.cache
def all_of(names):
  """The cases as one function, which is quicker to trace and compile."""
  return lambda x, w: {n: CASES[n](x, w) for n in names}


@functools.cache
def alone(f, dtype):
  return oracle.alone(f, *inputs(dtype))


def starting_with(*starts):
  return [n for n in CASES if n.startswith(starts)]


GROUPS = {
    'grad': starting_with('grad_', 'vmap_of', 'jit_of', 'fwd_and'),
    'vjp': starting_with('vjp'),
    'linear': starting_with('linear', 'transpose', 'jvp_'),
    'second': starting_with('jac', 'hessian'),
    'remat': [n for n in starting_with('remat') if n != 'remat_offload_dot'],
    'solves': starting_with('closure', 'custom_linear', 'custom_root',
                            'control', 'custom_jvp', 'custom_gradient',
                            'gradient_clipping'),
    'custom_vjp_within': [f'custom_vjp_in_{n}' for n in WITHIN],
    'custom_vjp_options': [n for n in starting_with('custom_vjp')
                           if not n.startswith('custom_vjp_in')],
}
SAMPLE = ['grad_tree_of_shared', 'vjp_tree_aux_and_integer_output',
          'jvp_mixtures', 'hessian_vector_products', 'custom_vjp_in_scan']
WIDE = ['grad_tree_of_shared', 'vjp_tree_aux_and_integer_output',
        'vjp_python_float', 'jvp_mixtures', 'linearize', 'custom_root',
        'custom_vjp_in_scan']
SETTINGS = [
    ('use_direct_linearize', False, SAMPLE),
    ('custom_vjp3', True, ['custom_vjp_in_scan', 'custom_vjp_tree']),
    ('remat3', True, ['remat_dots', 'remat_in_scan']),
    ('enable_checks', False, SAMPLE)]  # it is on in all other tests


def holomorphic(x, w):
  """Gradients, products with Hessians and transposes of complex functions."""
  f = lambda x, w: jnp.sum(jnp.sin(x * w) * x)
  grad = functools.partial(jax.grad, holomorphic=True)
  gx, gw = grad(f, (0, 1))(x, w)
  ones = np.ones(x.shape, x.dtype)
  jacobian = jax.jacrev(lambda r: jnp.sin(r) * w, holomorphic=True)(x[0])
  return {
      'grad': (gx, Summed(gw)), 'jacrev': jacobian,
      'jacfwd': jax.jacfwd(lambda r: jnp.sin(r) * w, holomorphic=True)(x[0]),
      'hvp': jax.jvp(lambda x: grad(f)(x, w), (x,), (ones,))[1],
      'vjp': jax.vjp(lambda x: x * w, x)[1](ones),
      'vjp_scalar': jax.vjp(lambda x: f(x, w), x)[1](1. + 0.5j),
      'transpose': jax.linear_transpose(lambda x: x * w, x)(ones),
      'real': jax.grad(lambda x: jnp.sum(jnp.abs(x * w) ** 2))(x),
      'remat': grad(jax.checkpoint(lambda x: f(x, w)))(x)}


class DerivativesTest(oracle.OracleTestCase):

  def check(self, names, kind, jit=True, dtype=np.float32):
    self.compare(all_of(tuple(names)), kind, jit, dtype)

  def compare(self, f, kind, jit, dtype):
    with jax_config.numpy_rank_promotion('allow'):
      got, want = oracle.outcome(f, make_mesh(*MESHES[kind]), *inputs(dtype),
                                 jit=jit, blocks=alone(f, dtype))
    self.assert_same(got, want, 1e-10 if dtype == np.float64 else 1e-4)

  @parameterized.parameters(*GROUPS)
  def test_2d(self, group):
    self.check(GROUPS[group], '2d')

  def test_1d(self):
    self.check(SAMPLE, '1d')

  def test_eager(self):
    self.check(['vjp_tree_aux_and_integer_output'], '2d', jit=False)

  def test_float64(self):
    with jax_config.enable_x64(True):
      self.check(WIDE, '2d', dtype=np.float64)

  def test_holomorphic(self):
    self.compare(holomorphic, '2d', True, np.complex64)

  @parameterized.parameters(*SETTINGS)
  def test_setting(self, name, value, cases):
    option = getattr(jax_config, name, None)
    if option is None:
      self.skipTest(f'jax_{name} is newer')
    checks = jax_config.enable_checks.value
    if name == 'remat3' and jax.__version_info__ == (0, 11, 0):
      checks = False  # upstream's barrier casts what a held operation takes
    with jax_config.enable_checks(checks), option(value):
      self.check(cases, '2d')

  def test_export_and_compile_ahead_of_time(self):
    mesh = make_mesh(2, 2)
    x, w = inputs(np.float32)
    f = lambda x, w: jnp.sum(jnp.sin(x) * w[None])
    def step(x, w):
      v, g = jax.value_and_grad(f)(x[0], w)
      return v[None], g[None]
    want = [jax.value_and_grad(f)(b, w) for b in x]
    x = jax.device_put(x, NamedSharding(mesh, P(('x', 'y'))))
    w = jax.device_put(w, NamedSharding(mesh, P()))
    g = jax.jit(shard_map(step, mesh=mesh, in_specs=(P(('x', 'y')), P()),
                          out_specs=P(('x', 'y'))))
    blob = export.export(g)(x, w).serialize()
    for h in (g.lower(x, w).compile(), export.deserialize(blob).call):
      got = h(x, w)
      np.testing.assert_allclose(got[0], [v for v, _ in want], rtol=1e-5)
      np.testing.assert_allclose(got[1], [g for _, g in want], rtol=1e-5)

  @parameterized.product(jit=[False, True])
  def test_gradient_of_a_function_that_differentiates_inside(self, jit):
    # grad outside of shard_map, of gradient steps inside of it.
    mesh = make_mesh(2, 2)
    x, w = inputs(np.float32)
    def step(x, w):
      return x - 0.1 * jax.grad(lambda x: jnp.sum(jnp.sin(x * w[None])))(x)
    g = shard_map(lambda x, w: step(x[0], w)[None], mesh=mesh,
                  in_specs=(P(('x', 'y')), P()), out_specs=P(('x', 'y')))
    f = lambda w: jnp.sum(g(x, w) ** 2)
    got = jax.grad(jax.jit(f) if jit else f)(w)
    alone = jax.jit(jax.grad(lambda w, b: jnp.sum(step(b, w) ** 2)))
    want = sum(alone(w, b) for b in x)
    np.testing.assert_allclose(got, want, rtol=1e-4)
