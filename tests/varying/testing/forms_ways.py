# SPDX-License-Identifier: Apache-2.0
"""What wraps a form, inside of shard_map, and what is done with it, outside."""
import jax
from jax import lax
import jax.numpy as jnp
import numpy as np

S = jnp.sum


def w_none(f):
  return f


def w_jit(f):
  return jax.jit(f)


def w_remat(f):
  return jax.checkpoint(f)


def w_vmap(f):
  return lambda *args: jax.tree_util.tree_map(
    lambda z: z[0] + 0.5 * z[1],
    jax.vmap(f)(*(jnp.stack([x, x * 0.5]) for x in args)),
  )


def w_vmap_a(f):
  return lambda a, b, c, w: jax.tree_util.tree_map(
    lambda z: z[0] + 0.5 * z[1],
    jax.vmap(f, (0, None, None, None))(jnp.stack([a, a * 0.5]), b, c, w),
  )


def w_vmap_w(f):
  return lambda a, b, c, w: jax.tree_util.tree_map(
    lambda z: z[0] + 0.5 * z[1],
    jax.vmap(f, (None, None, None, 0))(a, b, c, jnp.stack([w, w * 0.5])),
  )


def w_scan(f):
  return lambda *args: jax.tree_util.tree_map(
    lambda z: z.sum(0),
    lax.scan(
      lambda _, s: ((), f(*args[:3], args[3] * s)), (), jnp.array([1.0, 0.5])
    )[1],
  )


def w_scan_carry(f):
  def g(a, b, c, w):
    outs = tuple(f(a, b, c, w))
    return lax.scan(
      lambda s, _: (
        tuple(0.5 * p + 0.1 * q for p, q in zip(s, f(a, b, c, w))),
        None,
      ),
      tuple(jnp.zeros_like(w) for _ in outs),
      None,
      length=2,
    )[0]

  return g


def w_cond(f):
  return lambda a, b, c, w: lax.cond(
    S(w) > -9.0,
    lambda: tuple(f(a, b, c, w)),
    lambda: tuple(jnp.zeros(3) for _ in f(a, b, c, w)),
  )


def w_jvp(f):
  def g(*args):
    p, t = jax.jvp(f, args, tuple(jnp.cos(x) for x in args))
    return jax.tree_util.tree_map(lambda u, v: u + v, p, t)

  return g


def w_lin(f):
  def g(*args):
    p, l = jax.linearize(lambda *a: tuple(f(*a)), *args)
    return jax.tree_util.tree_map(lambda u, v: u + v, p, l(*args))

  return g


def w_cjvp(f):
  g = jax.custom_jvp(lambda *a: tuple(f(*a)))
  g.defjvp(lambda p, t: jax.jvp(lambda *a: tuple(f(*a)), p, t))
  return g


WRAPS = {k[2:]: v for k, v in list(globals().items()) if k.startswith('w_')}


def weighted(outs):
  weights = lambda o: np.linspace(1.0, 2.0, o.size, dtype='f').reshape(o.shape)
  return sum(jnp.sum(o * weights(o)) for o in outs)


def t_jit(f):
  return jax.jit(f)


def t_grad(f):
  return jax.jit(jax.grad(lambda *a: weighted(f(*a)), (0, 1, 2, 3)))


def t_eager(f):
  return f


def t_eager_grad(f):
  return jax.grad(lambda *a: weighted(f(*a)), (0, 1, 2, 3))


def t_disable(f):
  def g(*a):
    with jax.disable_jit():
      return f(*a)

  return g


def t_jvp(f):
  return jax.jit(
    lambda *a: jax.jvp(lambda *b: f(*b), a, tuple(jnp.cos(x) for x in a))
  )


def t_jacfwd(f):
  return jax.jit(jax.jacfwd(lambda *a: weighted(f(*a)), (0, 3)))


def t_hessian(f):
  return jax.jit(
    lambda a, b, c, w: jax.hessian(lambda w: weighted(f(a, b, c, w)))(w)
  )


def t_jacrev2(f):
  return jax.jit(
    lambda a, b, c, w: jax.jacrev(jax.grad(lambda w: weighted(f(a, b, c, w))))(
      w
    )
  )


def t_vmap(f):
  return jax.jit(lambda *a: jax.vmap(f)(*(jnp.stack([x, x * 0.5]) for x in a)))


def t_vmap_w(f):
  return jax.jit(
    lambda a, b, c, w: jax.vmap(f, (None, None, None, 0))(
      a, b, c, jnp.stack([w, w * 0.5])
    )
  )


def t_vmap_grad(f):
  return jax.jit(
    lambda *a: jax.vmap(jax.grad(lambda *a: weighted(f(*a)), (0, 3)))(
      *(jnp.stack([x, x * 0.5]) for x in a)
    )
  )


def t_grad_remat(f):
  return jax.jit(
    jax.grad(jax.checkpoint(lambda *a: weighted(f(*a))), (0, 1, 2, 3))
  )


def t_vjp_vmap(f):
  return jax.jit(
    jax.grad(
      lambda a, b, c, w: sum(
        weighted(o)
        for o in jax.vmap(f, (0, None, None, None))(
          jnp.stack([a, a * 0.5]), b, c, w
        )
      ),
      (0, 3),
    )
  )


TRANSFORMS = {
  k[2:]: v for k, v in list(globals().items()) if k.startswith('t_')
}
SECOND = {'hessian', 'jacrev2', 'jacfwd', 'jvp'}
DIFF = {
  'grad',
  'eager_grad',
  'jvp',
  'jacfwd',
  'hessian',
  'jacrev2',
  'vmap_grad',
  'grad_remat',
  'vjp_vmap',
}
