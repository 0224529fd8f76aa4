# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Every transformation in shard_map, by value, in every setting (jax#28193).

A case is a function of one device's block `x`, and perhaps of a value `w` that
all devices share. It is applied inside shard_map with the check on, and to each
device's block outside of it: results must be the same. A gradient with respect
to `w`, wrapped in `Summed`, is what the devices' own gradients add up to.
"""
import functools

from absl.testing import absltest
from absl.testing import parameterized
import jax
from jax import ad_checkpoint
from jax import export
from jax import lax
from jax._src import config as jax_config
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

jax.config.parse_flags_with_absl()
if hasattr(jtu, 'request_cpu_devices'):
  jtu.request_cpu_devices(8)

MESHES = {'1d': ((4,), ('x',)), '2d': ((2, 2), ('x', 'y'))}
f0 = jax.dtypes.float0


@jax.tree_util.register_pytree_node_class
class Summed:
  """Gradients with respect to what the devices share."""

  def __init__(self, value):
    self.value = value

  def tree_flatten(self):
    return (self.value,), None

  @classmethod
  def tree_unflatten(cls, _, children):
    return cls(*children)


# In 0.5.3 a gradient inside of shard_map is each device's own.
SUMS = jax.__version_info__ >= (0, 6)


def is_summed(x):
  return isinstance(x, Summed)


def inputs(dtype):
  """The four blocks, and the value that is shared."""
  rng = np.random.RandomState(0)
  x = rng.uniform(0.5, 1.5, (4, 2, 3))
  w = rng.uniform(0.5, 1.5, (3,))
  if np.issubdtype(dtype, np.complexfloating):
    x = x + 1j * rng.uniform(0.5, 1.5, x.shape)
    w = w + 1j * rng.uniform(0.5, 1.5, w.shape)
  return x.astype(dtype), w.astype(dtype)


CASES = {}


def case(f):
  CASES[f.__name__] = f
  return f


def loss(x):
  return jnp.sum(jnp.sin(x) * x ** 2)


def tree_loss(p):
  return jnp.sum(jnp.tanh(p['a']) * p['b'][0]), p['a'] * 2.


# grad, value_and_grad.


@case
def grad_vector(x, w):
  return jax.grad(loss)(x)


@case
def grad_scalar(x, w):
  return jax.value_and_grad(lambda s: jnp.sin(s) * s)(x[0, 0])


@case
def grad_tree(x, w):
  return jax.value_and_grad(tree_loss, has_aux=True)({'a': x, 'b': [x * 3.]})


@case
def grad_tree_of_shared(x, w):
  f = lambda p: jnp.sum(jnp.sin(x * p['w']) + p['b'])
  v, g = jax.value_and_grad(f)({'w': w, 'b': w[0]})
  return v, Summed(g)


@case
def grad_argnums(x, w):
  f = lambda a, b, c: jnp.sum(a * b ** 2 * c)
  a, c = jax.grad(f, (0, 2))(x, x + 1., w)
  return a, Summed(c), jax.grad(f, argnums=1)(x, x, w)


@case
def grad_allow_int(x, w):
  i = jnp.floor(x * 5.).astype(int)
  gi, gx = jax.grad(lambda i, x: jnp.sum(i.astype(x.dtype) * x), (0, 1),
                    allow_int=True)(i, x)
  assert gi.dtype == f0 and gi.shape == x.shape
  return gx


@case
def grad_of_grad(x, w):
  return jax.grad(jax.grad(jax.grad(lambda s: jnp.sin(s * w[0]) * s)))(x[0, 0])


@case
def grad_of_vmap(x, w):
  f = lambda w: jnp.sum(jax.vmap(lambda r: jnp.sum(jnp.sin(r * w)))(x))
  return Summed(jax.grad(f)(w))


@case
def vmap_of_grad(x, w):
  g = jax.vmap(jax.value_and_grad(lambda r, w: jnp.sum(jnp.sin(r * w) * r)),
               (0, None))
  return g(x, w)


@case
def vmap_of_grad_of_shared(x, w):
  g = jax.vmap(jax.grad(lambda w, r: jnp.sum(jnp.sin(r * w))), (None, 0))
  return Summed(g(w, x))


@case
def grad_under_vmap_of_shared_rows(x, w):
  g = jax.grad(lambda s: jnp.sum(jnp.sin(x * s)))
  return Summed(jax.vmap(g)(w))


@case
def jit_of_grad_of_jit(x, w):
  f = jax.jit(lambda x, w: jnp.sum(jax.jit(jnp.sin)(x * w)))
  v, (gx, gw) = jax.jit(jax.value_and_grad(f, (0, 1)))(x, w)
  return v, gx, Summed(gw)


@case
def grad_of_mean_loss(x, w):
  return jax.grad(lambda x: jnp.mean(jax.nn.relu(x) * w))(x)


@case
def fwd_and_bwd(x, w):
  if not hasattr(jax, 'fwd_and_bwd'):
    return x
  forward, backward = jax.fwd_and_bwd(loss, argnums=0)
  y, pull = forward(x)
  g = backward(pull, jnp.ones_like(y))
  return y, g[0] if isinstance(g, tuple) else g


# vjp, linear_transpose, with cotangents that the user makes.


@case
def vjp_python_float(x, w):
  return jax.vjp(loss, x)[1](1.)


@case
def vjp_numpy(x, w):
  pull = jax.vjp(jnp.sin, x)[1]
  return pull(np.ones(x.shape, x.dtype)), pull(np.zeros(x.shape, x.dtype))


@case
def vjp_numpy_scalar(x, w):
  return jax.vjp(loss, x)[1](x.dtype.type(3.))


@case
def vjp_jax_array(x, w):
  _, pull = jax.vjp(loss, x)
  one = jnp.ones((), x.dtype)
  return pull(one), pull(jnp.zeros((), x.dtype)), pull(jnp.zeros_like(one))


@case
def vjp_of_shared(x, w):
  y, pull = jax.vjp(lambda w: x * w, w)
  return Summed(pull(jnp.ones(y.shape, y.dtype))), Summed(pull(y))


@case
def vjp_tree_aux_and_integer_output(x, w):
  def f(x, w):
    return {'a': loss(x), 'i': jnp.floor(jnp.real(x)).astype(int),
            'b': (x * w, x * 3.)}, x + 1.
  _, pull, aux = jax.vjp(f, x, w, has_aux=True)
  gx, gw = pull({'a': 1., 'i': np.zeros(x.shape, f0),
                 'b': (jnp.ones(x.shape, x.dtype), x)})
  return gx, Summed(gw), aux


@case
def vjp_of_several_cotangents(x, w):
  _, pull = jax.vjp(jnp.sin, x)
  return jax.vmap(pull)(jnp.eye(x.size, dtype=x.dtype).reshape(
      x.size, *x.shape))


@case
def vjp_in_jit(x, w):
  pull = jax.vjp(jax.jit(lambda x, w: x * w), x, w)[1]
  gx, gw = jax.jit(pull)(jnp.ones(x.shape, x.dtype))
  return gx, Summed(gw)


@case
def vjp_of_an_output_that_is_shared(x, w):
  _, pull = jax.vjp(lambda x, w: (jnp.sum(x * w), jnp.sum(w ** 2)), x, w)
  gx, gw = pull((1., 0.))
  return gx, Summed(gw)


@case
def linear_transpose(x, w):
  t = jax.linear_transpose(lambda x: (3. * x, x * w), x)
  return t((jnp.ones(x.shape, x.dtype), np.ones(x.shape, x.dtype))), t((x, x))


@case
def linear_transpose_of_shared(x, w):
  t = jax.linear_transpose(lambda w: w * x, w)
  return Summed(t(jnp.ones(x.shape, x.dtype))), Summed(t(x))


# linearize, jvp.


@case
def linearize(x, w):
  y, lin = jax.linearize(lambda x, w: jnp.sin(x) * w, x, w)
  ones = jnp.ones(x.shape, x.dtype)
  return y, lin(ones, w), lin(x, w), lin(
      np.ones(x.shape, x.dtype), np.zeros(w.shape, w.dtype))


@case
def linearize_scalar(x, w):
  return jax.linearize(jnp.sin, x[0, 0])[1](1.)


@case
def linearize_has_aux_in_jit(x, w):
  @jax.jit
  def f(x):
    y, lin, aux = jax.linearize(
        lambda x: ({'a': x * w}, x + 1.), x, has_aux=True)
    return y, jax.jit(lin)(jnp.ones(x.shape, x.dtype)), aux
  return f(x)


@case
def jvp_of_linearized(x, w):
  lin = jax.linearize(jnp.sin, x)[1]
  return jax.jvp(lin, (jnp.ones(x.shape, x.dtype),), (x,))


@case
def transpose_of_linearized(x, w):
  lin = jax.linearize(jnp.sin, x)[1]
  return jax.linear_transpose(lin, x)(jnp.ones(x.shape, x.dtype))


@case
def linearize_with_more(x, w):  # a direction for each device, at one point
  y, lin = jax.linearize(jnp.sin, w)
  return y, lin(x[0]), lin(w), lin(x[1])


@case
def jvp_mixtures(x, w):
  f = lambda x, w: jnp.sin(x) * w
  ones = jnp.ones(x.shape, x.dtype)
  return (jax.jvp(f, (x, w), (ones, w)), jax.jvp(f, (x, w), (ones, x[0])),
          jax.jvp(f, (x, w), (x, x[1])),
          jax.jvp(jax.jit(f), (ones, w), (x, x[0])))


@case
def jvp_python_scalars(x, w):
  s = x[0, 0]
  return (jax.jvp(jnp.sin, (s,), (1.,)), jax.jvp(lambda y: x * y, (2.,), (1.,)),
          jax.jvp(lambda y: x * y, (x.dtype.type(2.),), (s,)))


@case
def grad_of_jvp(x, w):
  def directional(t):
    return jnp.sum(jax.jvp(jax.jit(jnp.sin), (x,), (t,))[1] * x)
  return jax.grad(directional)(jnp.ones(x.shape, x.dtype) * x[0, 0])


@case
def grad_of_jvp_of_shared(x, w):
  def f(s):
    t = jnp.broadcast_to(w, x.shape)
    return jnp.sum(jax.jvp(lambda x: jnp.sin(x * s), (x,), (t,))[1])
  def g(s):
    one = jnp.ones((), x.dtype)
    return jnp.sum(jax.jvp(lambda s: jnp.sin(x * s), (s,), (one,))[1])
  return Summed(jax.grad(f)(w)), Summed(jax.grad(g)(w[0]))


@case
def grad_of_jvp_with_python_scalar(x, w):
  return jax.grad(lambda s: jax.jvp(lambda t: jnp.sin(t * s), (s,), (1.,))[1])(
      x[0, 0])


@case
def jacobians(x, w):
  f = lambda x, w: jnp.sin(x[0]) * w
  return (jax.jacfwd(f)(x, w), jax.jacrev(f)(x, w),
          Summed(jax.jacrev(f, 1)(x, w)), jax.hessian(
              lambda r: jnp.sum(jnp.sin(r * w)))(x[0]))


@case
def jacfwd_of_shared(x, w):
  return jax.jacfwd(lambda w: jnp.sin(x * w))(w)


@case
def jacobians_of_trees(x, w):
  f = lambda p: {'c': p['a'] * p['b'], 'd': jnp.sum(p['a'])}
  p = {'a': x[0], 'b': x[1]}
  return jax.jacfwd(f)(p), jax.jacrev(f)(p), jax.hessian(
      lambda p: jnp.sum(f(p)['c'] ** 2))(p)


@case
def hessian_vector_products(x, w):
  v = np.ones(x.shape, x.dtype)
  f = lambda x: jnp.sum(jnp.sin(x * w))
  return (jax.jvp(jax.grad(f), (x,), (v,))[1],
          jax.grad(lambda x: jax.jvp(f, (x,), (v,))[1])(x),
          jax.grad(lambda x: jnp.sum(jax.grad(f)(x) * v))(x),
          jax.linearize(jax.grad(f), x)[1](v),
          jax.vjp(jax.grad(f), x)[1](jnp.asarray(v)))


@case
def hessian_vector_product_of_shared(x, w):
  f = lambda w: jnp.sum(jnp.sin(x * w))
  v = np.ones(w.shape, w.dtype)
  return (Summed(jax.jvp(jax.grad(f), (w,), (v,))[1]),
          Summed(jax.grad(lambda w: jax.jvp(f, (w,), (v,))[1])(w)))


# remat.


POLICIES = {
    'none': None,
    'everything': 'everything_saveable',
    'nothing': 'nothing_saveable',
    'dots': 'dots_saveable',
    'checkpoint_dots': 'checkpoint_dots',
    'dots_no_batch': 'dots_with_no_batch_dims_saveable',
    'checkpoint_dots_no_batch': 'checkpoint_dots_with_no_batch_dims',
    'offload_dot': lambda p: p.offload_dot_with_no_batch_dims(
        'device', 'pinned_host'),
    'anything_except': lambda p: p.save_anything_except_these_names('h'),
    'any_names_but': lambda p: p.save_any_names_but_these('o'),
    'only_names': lambda p: p.save_only_these_names('h'),
    'both': lambda p: p.save_from_both_policies(
        p.dots_saveable, p.save_only_these_names('h')),
    'offload_names': lambda p: p.save_and_offload_only_these_names(
        names_which_can_be_saved=['h'], names_which_can_be_offloaded=[],
        offload_src='device', offload_dst='pinned_host'),
}


def remat(policy, x, w):
  policies = jax.checkpoint_policies
  if isinstance(policy, str):
    policy = getattr(policies, policy)
  elif policy is not None:
    policy = policy(policies)
  @functools.partial(jax.checkpoint, policy=policy)
  def f(x, w):
    h = ad_checkpoint.checkpoint_name(jnp.sin((x * w) @ x.T), 'h')
    return jnp.sum(jnp.sin(h))
  gx, gw = jax.grad(f, (0, 1))(x, w)
  return gx, Summed(gw), jax.vjp(f, x, w)[1](1.)[0]


CASES.update({f'remat_{n}': functools.partial(remat, p)
              for n, p in POLICIES.items()})


@case
def remat_second(x, w):
  f = jax.checkpoint(lambda x, w: jnp.sum(jnp.sin(jnp.sin(x * w))))
  return jax.jvp(jax.grad(f), (x, w), (jnp.ones(x.shape, x.dtype), w))[1]


@case
def remat_arguments(x, w):
  f = jax.checkpoint(lambda x, n, w: jnp.sum(jnp.sin(x * w) ** n),
                     static_argnums=(1,), prevent_cse=False)
  gx, gw = jax.grad(f, (0, 2))(x, 2, w)
  return gx, Summed(gw)


@case
def remat_of_loop(x, w):
  @jax.checkpoint
  def f(x, w):
    return jnp.sum(lax.scan(lambda c, r: (jnp.sin(c * r), c), w, x)[0])
  gx, gw = jax.grad(f, (0, 1))(x, w)
  return gx, Summed(gw)


@case
def remat_in_scan(x, w):
  def f(x, w):
    step = jax.checkpoint(lambda c, r: (jnp.sin(c * r * w), None))
    return jnp.sum(lax.scan(step, w, x)[0])
  gx, gw = jax.grad(f, (0, 1))(x, w)
  return gx, Summed(gw)


# closure_convert, linear solves, roots, control flow.


@case
def closure_convert(x, w):
  f, consts = jax.closure_convert(lambda y: jnp.sum(jnp.sin(y * w)), x)
  g, consts2 = jax.closure_convert(lambda y: jnp.sum(jnp.sin(x * y)), w)
  return jax.grad(f)(x, *consts), Summed(jax.grad(g)(w, *consts2))


def linear_solve(a, b, **kwargs):
  solve = lambda matvec, b: jnp.linalg.solve(a, b)
  transpose = lambda vecmat, b: jnp.linalg.solve(a.T, b)
  return lax.custom_linear_solve(lambda x: a @ x, b, solve, transpose, **kwargs)


@case
def custom_linear_solve(x, w):
  a = jnp.eye(3, dtype=x.dtype) * 3. + x.T @ x
  f = lambda a, b: jnp.sum(linear_solve(a, b) ** 2)
  ga, gw = jax.grad(f, (0, 1))(a, w)
  return ga, Summed(gw), jax.jvp(f, (a, w), (jnp.ones_like(a), x[0]))[1]


@case
def custom_linear_solve_shared_matrix(x, w):
  a = jnp.eye(3, dtype=x.dtype) * 3. + w[:, None] * w
  f = lambda a, b: jnp.sum(linear_solve(a, b, symmetric=True) ** 2)
  ga, gb = jax.grad(f, (0, 1))(a, x[0])
  return Summed(ga), gb


@case
def custom_root(x, w):
  def root(a, y0):
    return lax.custom_root(
        lambda y: y ** 2 - a, y0, lambda f, y: jnp.sqrt(a) + 0. * y,
        lambda g, y: y / g(jnp.ones_like(y)))
  f = lambda a: jnp.sum(root(a, w) ** 3)
  g = lambda w: jnp.sum(root(w, x[0]) ** 3 * x[1])
  return (jax.value_and_grad(f)(x[0]), Summed(jax.grad(g)(w)),
          jax.jvp(f, (x[0],), (w,)))


@case
def control_flow(x, w):
  def f(x, w):
    c = lax.fori_loop(0, 2, lambda i, c: jnp.sin(c * x[0]), w)
    c = c + lax.cond(jnp.real(x[0, 0]) > 1., lambda: x[0] * w, lambda: w)
    c = c + lax.switch(jnp.floor(jnp.real(x[0, 0]) * 2.).astype(int),
                       [lambda: w, lambda: x[0] * w, lambda: x[1]])
    c = c + lax.map(lambda r: jnp.sum(r * w), x).sum()
    return jnp.sum(lax.associative_scan(lambda a, b: a * b, c * x))
  v, (gx, gw) = jax.value_and_grad(f, (0, 1))(x, w)
  return v, gx, Summed(gw)


# custom_jvp, custom_vjp.


sine = jax.custom_jvp(lambda x, w: jnp.sum(jnp.sin(x * w)))
sine.defjvps(lambda t, ans, x, w: jnp.sum(jnp.cos(x * w) * w * t),
             lambda t, ans, x, w: jnp.sum(jnp.cos(x * w) * x * t))


@case
def custom_jvp(x, w):
  gx, gw = jax.grad(sine, (0, 1))(x, w)
  return gx, Summed(gw), jax.jvp(sine, (x, w), (jnp.ones_like(x), x[0]))


line = jax.custom_jvp(lambda x: 2. * x)
line.defjvp(lambda p, t: (line(*p), jnp.full(p[0].shape, 2., p[0].dtype)))


@case
def custom_jvp_constant_slope(x, w):
  return jax.jvp(line, (x,), (jnp.ones_like(x),)), jax.vmap(
      lambda r: jax.jvp(line, (r,), (r,)))(x)


staged = jax.custom_jvp(lambda n, x, w: jnp.sum(x * w) ** n,
                        nondiff_argnums=(0,))
staged.defjvp(lambda n, p, t: (
    staged(n, *p), n * jnp.sum(p[0] * p[1]) ** (n - 1) * (
        jnp.sum(t[0] * p[1]) + jnp.sum(p[0] * t[1]))))


@case
def custom_jvp_nondiff_argnums(x, w):
  gx, gw = jax.grad(staged, (1, 2))(3, x, w)
  return gx, Summed(gw)


def product(**kwargs):
  """sum(sin(x * w)); its rule knows nothing of what varies."""
  f = jax.custom_vjp(lambda x, w: jnp.sum(jnp.sin(x * w)))
  def fwd(x, w):
    if kwargs.get('symbolic_zeros'):
      x, w = x.value, w.value
    return jnp.sum(jnp.sin(x * w)), (x, w)
  def bwd(r, g):
    x, w = r
    c = g * jnp.cos(x * w)
    return c * w, jnp.sum(c * x, 0)
  f.defvjp(fwd, bwd, **kwargs)
  return f


def in_scan(f):
  def g(x, w):
    return lax.scan(lambda c, r: (c + f(r * c, w), None), 1. + 0. * x[0, 0],
                    x[:, None])[0]
  return g


def in_scan_from_shared(f):
  def g(x, w):
    return lax.scan(lambda c, r: (c + f(r * c, w), None), w[0],
                    x[:, None])[0]
  return g


def in_cond(f):
  return lambda x, w: lax.cond(jnp.real(x[0, 0]) > 1., f,
                               lambda x, w: jnp.sum(x) * 3. + 0. * w[0], x, w)


def in_vmap(f):
  return lambda x, w: jnp.sum(jax.vmap(f, (0, None))(x[:, None], w))


def in_vmap_of_shared(f):
  return lambda x, w: jnp.sum(
      jax.vmap(f, (None, 0))(x, jnp.stack([w, 2. * w])))


def in_fori(f):
  return lambda x, w: lax.fori_loop(0, 2, lambda i, c: f(x * c, w), w[0])


WITHIN = {'itself': lambda f: f, 'jit': jax.jit, 'scan': in_scan,
          'scan_from_shared': in_scan_from_shared, 'fori': in_fori,
          'cond': in_cond, 'vmap': in_vmap,
          'vmap_of_shared': in_vmap_of_shared, 'remat': jax.checkpoint,
          'remat_of_scan': lambda f: jax.checkpoint(in_scan(f))}


def custom_vjp(options, within, x, w):
  f = WITHIN[within](product(**options))
  v, (gx, gw) = jax.value_and_grad(f, (0, 1))(x, w)
  return v, gx, Summed(gw), jax.grad(f)(x, w), Summed(jax.grad(f, 1)(x, w))


CASES.update({f'custom_vjp_in_{n}': functools.partial(
    custom_vjp, {}, n) for n in WITHIN})
CASES.update({f'custom_vjp_{o}_in_{n}': functools.partial(
    custom_vjp, {o: True}, n) for n in ('itself', 'scan', 'remat')
              for o in ('symbolic_zeros', 'optimize_remat')})


def constant_rule(x, w):  # the slopes do not vary, whatever the input
  f = jax.custom_vjp(lambda x, w: jnp.sum(x) + jnp.sum(w))
  f.defvjp(lambda x, w: (f(x, w), (x, w)),
           lambda r, g: (jnp.ones(r[0].shape, r[0].dtype),
                         np.ones(r[1].shape, r[1].dtype)))
  return f(x, w)


def constant_rules(within, x, w):
  f = WITHIN[within](constant_rule)
  return jax.grad(f)(x, w)


CASES.update({f'custom_vjp_constant_in_{n}': functools.partial(
    constant_rules, n) for n in ('itself', 'scan', 'vmap', 'cond')})


@case
def custom_vjp_none(x, w):
  f = jax.custom_vjp(lambda x, w, i: jnp.sum(x * w) * i.astype(x.dtype))
  f.defvjp(lambda x, w, i: (f(x, w, i), (w, x, i)),
           lambda r, g: (jnp.broadcast_to(
               g * r[0] * r[2].astype(g.dtype), r[1].shape), None, None))
  i = jnp.floor(jnp.real(x[0, 0])).astype(int) + 1
  gx, gw = jax.grad(f, (0, 1))(x, w, i)
  return gx, gw, jax.grad(lambda x: f(x, w, i) * jnp.sum(x))(x)


@case
def custom_vjp_tree(x, w):
  f = jax.custom_vjp(lambda p: {'s': jnp.sum(p['x'] * p['w']), 'x': p['x']})
  f.defvjp(lambda p: (f(p), p),
           lambda p, g: ({'x': g['s'] * p['w'] + g['x'],
                          'w': jnp.sum(g['s'] * p['x'], 0)},))
  total = lambda p: (lambda y: y['s'] + jnp.sum(y['x'] ** 2))(f(p))
  g = jax.grad(total)({'x': x, 'w': w})
  return g['x'], Summed(g['w'])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def applied(f, x, w, n):
  return jnp.sum(f(x * w)) * n


applied.defvjp(lambda f, x, w, n: (applied(f, x, w, n), (x, w)),
               lambda f, n, r, g: (
                   g * n * jnp.cos(r[0] * r[1]) * r[1],
                   jnp.sum(g * n * jnp.cos(r[0] * r[1]) * r[0], 0)))


@case
def custom_vjp_nondiff_argnums(x, w):
  gx, gw = jax.grad(lambda x, w: applied(jnp.sin, x, w, 3.), (0, 1))(x, w)
  return gx, Summed(gw)


@case
def custom_vjp_of_custom_vjp(x, w):
  f = product()
  g = jax.custom_vjp(lambda x, w: f(x, w) ** 2)
  def fwd(x, w):
    y, pull = jax.vjp(f, x, w)
    return y ** 2, (y, pull)
  g.defvjp(fwd, lambda r, t: r[1](2. * r[0] * t))
  gx, gw = jax.grad(g, (0, 1))(x, w)
  return gx, Summed(gw)


@case
def custom_vjp_second_derivative(x, w):
  f = product()
  total = lambda x, w: jnp.sum(jax.grad(f)(x, w) ** 2)
  gx, gw = jax.grad(total, (0, 1))(x, w)
  return gx, Summed(gw)


@case
def custom_gradient(x, w):
  @jax.custom_gradient
  def f(x, w):
    return jnp.sum(jnp.sin(x * w)), lambda g: (
        g * jnp.cos(x * w) * w, jnp.sum(g * jnp.cos(x * w) * x, 0))
  gx, gw = jax.grad(f, (0, 1))(x, w)
  return gx, Summed(gw)


@case
def gradient_clipping(x, w):  # a rule that changes the cotangent alone
  f = jax.custom_vjp(lambda x: x)
  f.defvjp(lambda x: (x, None), lambda _, g: (g * 0.5,))
  gx, gw = jax.grad(lambda x, w: jnp.sum(f(x) * f(w)), (0, 1))(x, w)
  return gx, Summed(gw)


def outcome(f, kind, jit=True, dtype=np.float32):
  """What `f` gives inside shard_map, and what it should."""
  sizes, names = MESHES[kind]
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(sizes), names)
  x, w = inputs(dtype)
  if not SUMS:
    g = f
    f = lambda x, w: jax.tree.map(
        lambda y: y.value if is_summed(y) else y, g(x, w), is_leaf=is_summed)
  alone = jax.jit(f)
  want = [alone(b, w) for b in x]
  shared = jax.tree.map(
      lambda y: isinstance(y, Summed), want[0], is_leaf=is_summed)
  want = jax.tree.map(
      lambda *ys: (jax.tree.map(lambda *zs: sum(zs), *ys)
                   if is_summed(ys[0]) else np.stack(ys)),
      *want, is_leaf=is_summed)
  out_specs = jax.tree.map(lambda s: P() if s else P(names), shared)

  def body(x, w):
    return jax.tree.map(lambda y: y if is_summed(y) else jnp.asarray(y)[None],
                        f(x[0], w), is_leaf=is_summed)

  mapped = shard_map(body, mesh=mesh, in_specs=(P(names), P()),
                     out_specs=out_specs)
  return (jax.jit(mapped) if jit else mapped)(x, w), want


def starting_with(*starts):
  return [n for n in CASES if n.startswith(starts)]


# Cases that are traced together, which takes less time.
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
WIDE = SAMPLE + ['grad_of_grad', 'vjp_python_float', 'linearize', 'jacobians',
                 'remat_dots', 'custom_root', 'custom_linear_solve']
SETTINGS = [
    ('use_direct_linearize', False), ('custom_vjp3', True),
    ('remat3', True), ('enable_checks', True), ('enable_checks', False)]


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


class DerivativesTest(jtu.JaxTestCase):

  def check(self, names, kind, jit=True, dtype=np.float32):
    def f(x, w):
      return {n: CASES[n](x, w) for n in names}
    self.compare(f, kind, jit, dtype)

  def compare(self, f, kind, jit, dtype):
    tol = 1e-10 if np.finfo(dtype).bits == 64 else 1e-4
    with jax_config.numpy_rank_promotion('allow'):
      got, want = outcome(f, kind, jit, dtype)
    self.assertEqual(jax.tree.structure(got), jax.tree.structure(want))
    leaves = jax.tree_util.tree_flatten_with_path(want)[0]
    for a, (path, b) in zip(jax.tree.leaves(got), leaves):
      name = jax.tree_util.keystr(path)
      self.assertEqual(a.dtype, b.dtype, name)
      np.testing.assert_allclose(a, b, rtol=tol, atol=tol, err_msg=name)

  @parameterized.parameters(*GROUPS)
  def test_2d(self, group):
    self.check(GROUPS[group], '2d')

  def test_1d(self):
    self.check(SAMPLE, '1d')

  def test_eager(self):
    self.check(SAMPLE[:2], '2d', jit=False)

  def test_float64(self):
    with jax_config.enable_x64(True):
      self.check(WIDE, '2d', dtype=np.float64)

  @parameterized.product(kind=['1d', '2d'])
  def test_holomorphic(self, kind):
    self.compare(holomorphic, kind, True, np.complex64)

  @parameterized.product(setting=SETTINGS)
  def test_setting(self, setting):
    name, value = setting
    option = getattr(jax_config, name, None)
    if option is None:
      self.skipTest(f'jax_{name} is newer')
    with option(value):
      self.check(SAMPLE, '2d')

  def test_export_and_compile_ahead_of_time(self):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
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
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
    x, w = inputs(np.float32)
    def step(x, w):
      return x - 0.1 * jax.grad(lambda x: jnp.sum(jnp.sin(x * w[None])))(x)
    g = shard_map(lambda x, w: step(x[0], w)[None], mesh=mesh,
                  in_specs=(P(('x', 'y')), P()), out_specs=P(('x', 'y')))
    f = lambda w: jnp.sum(g(x, w) ** 2)
    got = jax.grad(jax.jit(f) if jit else f)(w)
    want = jax.grad(lambda w: sum(jnp.sum(step(b, w) ** 2) for b in x))(w)
    np.testing.assert_allclose(got, want, rtol=1e-4)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
