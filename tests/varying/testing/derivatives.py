# SPDX-License-Identifier: Apache-2.0
"""Cases for derivatives taken inside of shard_map: JAX's own transformations.

A case is a function of one device's block `x`, and perhaps of a value `w` that
all devices share. A gradient with respect to `w`, wrapped in `Summed`, is what
the devices' own gradients add up to.
"""

import jax
import jax.numpy as jnp
import numpy as np
from testing.oracle import Summed

f0 = jax.dtypes.float0


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
