# SPDX-License-Identifier: Apache-2.0
"""Forms: derivatives and custom rules within, nested control flow."""
import jax
from jax import lax
import jax.numpy as jnp
from varying.testing.forms import form
from varying.testing.forms import meet
from varying.testing.forms import vary

S = jnp.sum


def _cjvp():
  @jax.custom_jvp
  def f(u, v):
    return jnp.sin(u) * v

  @f.defjvp
  def _(p, t):
    return f(*p), jnp.cos(p[0]) * p[1] * t[0] + jnp.sin(p[0]) * t[1]

  return f


@form('xy')
def cust_jvp(a, b, c, w):
  f = _cjvp()
  return (lax.scan(lambda s, z: (f(s, a) * z, None), w, b)[0],)


@form('xy')
def cust_jvp_cond(a, b, c, w):
  f = _cjvp()
  return (lax.cond(S(b) > 0, lambda s: f(s, a), lambda s: f(s, w), w),)


def _cvjp():
  @jax.custom_vjp
  def f(u, v):
    return jnp.sin(u) * v

  f.defvjp(
    lambda u, v: (f(u, v), (u, v)),
    lambda r, t: (jnp.cos(r[0]) * r[1] * t, jnp.sin(r[0]) * t),
  )
  return f


@form('xy', fwd=False)
def cust_vjp(a, b, c, w):
  f = _cvjp()
  return (lax.scan(lambda s, z: (f(s, vary(a)) * z, None), vary(w), b)[0],)


@form('xy', fwd=False)
def cust_vjp_loose(a, b, c, w):
  f = _cvjp()
  return (lax.scan(lambda s, z: (f(s, a) * z, None), w, b)[0],)


@form('xy', fwd=False)
def cust_vjp_cond(a, b, c, w):
  f = _cvjp()
  return (lax.cond(S(b) > 0, lambda s: f(s, a), lambda s: f(s, w), w),)


@form('y', fwd=False)
def cust_vjp_closed(a, b, c, w):
  @jax.custom_vjp
  def f(u, n):
    return lax.fori_loop(0, 2, lambda i, s: jnp.sin(s) * u, n)

  f.defvjp(
    lambda u, n: jax.vjp(
      lambda u, n: lax.scan(
        lambda s, _: (jnp.sin(s) * u, None), n, None, length=2
      )[0],
      u,
      n,
    ),
    lambda r, t: r(t),
  )
  return (f(w, b),)


@form('x,xy')
def remat_dots(a, b, c, w):
  f = jax.checkpoint(
    lambda s, z: (jnp.sin(s @ jnp.outer(w, w)) * a + z, s),
    policy=jax.checkpoint_policies.dots_saveable,
  )
  u, ys = lax.scan(f, w, w)
  g = jax.checkpoint(
    lambda u: lax.cond(S(b) > 0, lambda: u * w, lambda: u * a),
    policy=jax.checkpoint_policies.nothing_saveable,
  )
  return u + ys.sum(0), g(w)


@form('xy')
def remat_names(a, b, c, w):
  from jax.ad_checkpoint import checkpoint_name

  f = jax.checkpoint(
    lambda s, z: (checkpoint_name(jnp.sin(s * w) * a, 'k') + z * b, None),
    policy=jax.checkpoint_policies.save_only_these_names('k'),
  )
  return (lax.scan(f, w, w)[0],)


@form('xy')
def remat_offload(a, b, c, w):
  f = jax.checkpoint(
    lambda s: lax.fori_loop(0, 2, lambda i, s: jnp.sin(s * w) * a, s) * b,
    policy=jax.checkpoint_policies.everything_saveable,
  )
  return (f(w),)


@form('x,')
def grad_in(a, b, c, w):
  g = jax.grad(
    lambda u: S(lax.fori_loop(0, 2, lambda i, s: jnp.sin(s * w) * u, w))
  )(vary(w, 'x'))
  return g, lax.psum(meet(g), 'x')


@form('')
def grad_in_repl(a, b, c, w):
  return (
    jax.grad(
      lambda u: S(
        lax.scan(lambda s, z: (jnp.sin(s * z) * w + s, None), u, w)[0]
      )
    )(w),
  )


@form('x')
def grad_in_cond(a, b, c, w):
  return (
    jax.grad(lambda u: S(lax.cond(S(a) > 0, lambda: u * w, lambda: u)))(a),
  )


@form('xy')
def hess_in(a, b, c, w):
  h = jax.hessian(
    lambda u: S(
      lax.scan(lambda s, z: (jnp.sin(s) * z * w, None), u, jnp.stack([c, c]))[0]
    )
  )(vary(c))
  return (h.sum(0),)


@form('xy')
def jacfwd_in(a, b, c, w):
  return (
    jax.jacfwd(
      lambda u: lax.scan(lambda s, z: (jnp.sin(s) * a + z, None), u, b)[0]
    )(w).sum(0),
  )


@form('x')
def jacrev_in(a, b, c, w):
  return (
    jax.jacrev(lambda u: lax.cond(S(a) > 0, lambda: u * w, lambda: u * 2))(
      a
    ).sum(0),
  )


@form('xy', rough=True)
def nest(a, b, c, w):
  def outer(i, s):
    def inner(t):
      return t[0] + 1, lax.cond(
        S(a) > 0, lambda q: q * 0.5 + w, lambda q: q + jnp.abs(b), t[1]
      )

    return (
      lax.while_loop(lambda t: (t[0] < 3) & (S(t[1]) < 3.0), inner, (0, s))[1]
      * 0.9
    )

  return (lax.fori_loop(0, 2, outer, w),)


@form('x,y')
def nest_scan_cond_scan(a, b, c, w):
  def body(s, z):
    p, q = s
    p = lax.cond(
      S(a) > 0,
      lambda p: lax.scan(lambda r, _: (r * w + z, None), p, None, length=2)[0],
      lambda p: p,
      p,
    )
    q = lax.cond(S(w) > 0, lambda q: q * b, lambda q: q, q)
    return (p, q), None

  return lax.scan(body, (w, w), w)[0]


@form('y')
def coll_other_axis(a, b, c, w):
  u = lax.cond(S(b) > 0, lambda: lax.psum(meet(a * w), 'x'), lambda: w)
  return (u,)


@form('y')
def coll_other_axis_scan(a, b, c, w):
  return (
    lax.scan(
      lambda s, _: (
        lax.cond(
          S(b) > 0, lambda s: lax.psum(meet(a * s), 'x') * 0.3, lambda s: s, s
        ),
        None,
      ),
      w,
      None,
      length=2,
    )[0],
  )


@form('x,')
def same_operand_twice_cond(a, b, c, w):
  return lax.cond(S(a) > 0, lambda u, v: (u, v), lambda u, v: (u * 2, v), w, w)


@form('x,')
def same_operand_twice_loop(a, b, c, w):
  return lax.fori_loop(0, 2, lambda i, s: (s[0] + a, s[1] * 0.5), (w, w))


@form('x,', rough=True)
def same_operand_twice_while(a, b, c, w):
  r = lax.while_loop(
    lambda s: S(s[0]) < 2, lambda s: (s[0] + jnp.abs(a) + 0.1, s[1]), (w, w)
  )
  return r
