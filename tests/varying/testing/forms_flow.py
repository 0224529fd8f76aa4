# SPDX-License-Identifier: Apache-2.0
"""Forms: loops, branches, collectives, keys, weak types, empty carries."""
import jax
from jax import lax
import jax.numpy as jnp
from varying.testing.forms import AX
from varying.testing.forms import form
from varying.testing.forms import meet

S = jnp.sum


@form('x,')
def while_pred_invariant(a, b, c, w):
  r = lax.while_loop(
    lambda s: S(s[0]) < 5.0,
    lambda s: (s[0] + jnp.abs(a) + 0.5, s[1]),
    (w, w * 2),
  )
  return r


@form('xy,y', rough=True)
def while_two(a, b, c, w):
  i, u, v = lax.while_loop(
    lambda s: (s[0] < 4) & (S(s[2]) < 4.0),
    lambda s: (s[0] + 1, s[1] + jnp.sin(a), s[2] + jnp.abs(b) + w * 0.1),
    (0, w, w),
  )
  return u, v


@form(',,', rough=True)
def adaptive_pmin(a, b, c, w):
  def body(s):
    t, n, y = s
    dt = lax.pmin(0.1 + 0.1 * jnp.abs(S(meet(y * a + b * 0.3))), AX)
    return t + dt, n + 1, y + dt * w

  t, n, y = lax.while_loop(lambda s: s[0] < 1.0, body, (0.0, 0, w))
  return t + w, n + w, y


@form('x,', rough=True)
def converge_pmax(a, b, c, w):
  def body(s):
    y, n, e = s
    y2 = 0.5 * (y + (1 + a**2) / y)
    return y2, n + 1, lax.pmax(jnp.max(jnp.abs(meet(y2 - y))), 'x')

  y, n, e = lax.while_loop(
    lambda s: (s[2] > 1e-3) & (s[1] < 20),
    body,
    (jnp.ones(3), 0, jnp.float32(1.0)),
  )
  return y, n * jnp.ones(3) + w


@form('y,y', rough=True)
def fori_traced(a, b, c, w):
  n = jnp.argmax(b)
  r = lax.fori_loop(0, n, lambda i, s: (s[0] * 0.5 + i, s[1] + w), (w, w))
  return r


@form('x,')
def fori_static(a, b, c, w):
  return lax.fori_loop(
    0, 3, lambda i, s: (s[0] * jnp.sin(a) + w * i, s[1] * w), (w, w)
  )


@form('x,y,x')
def scan_mixed(a, b, c, w):
  (u, v), ys = lax.scan(
    lambda s, z: ((s[0] * 0.5 + z * a, s[1] + b * z), s[0] * z), (w, w), w
  )
  return u, v, ys.sum(0)


@form('xy,x')
def scan_chain(a, b, c, w):
  def body(s, _):
    p, q, r, t = s
    return (q, r + p * 0.1, t * a, t), None

  (p, q, r, t), _ = lax.scan(body, (w, w * 2, w * 3, b), None, length=4)
  (p1, q1, r1, t1), _ = lax.scan(body, (w, w * 2, w * 3, w), None, length=4)
  return p, p1


@form('')
def scan_zero(a, b, c, w):
  u, ys = lax.scan(lambda s, z: (s * w, s), w, jnp.zeros((0, 3)))
  return (u + ys.sum(0),)


@form('x')
def scan_zero_vary(a, b, c, w):
  u, ys = lax.scan(lambda s, z: (s * a + z, s), w, jnp.zeros((0, 3)))
  return (u,)


@form('x')
def while_never(a, b, c, w):
  return (lax.while_loop(lambda s: S(s) > 1e5, lambda s: s + a, w),)


@form('x,x')
def cond_axis(a, b, c, w):
  return lax.cond(
    lax.axis_index('x') == 0, lambda: (w * a, w), lambda: (a, w * 2)
  )


@form('xy,y')
def cond_vary(a, b, c, w):
  return lax.cond(
    S(b) > 0, lambda u: (u * a * w, w * u), lambda u: (u * 2.0 + a, w), w
  )


@form('x,y')
def cond_repl_pred(a, b, c, w):
  return lax.cond(
    S(w) > 0.1, lambda u: (u * a * w, b), lambda u: (u * 2.0, w), w
  )


@form('x,,x')
def cond_forward(a, b, c, w):
  return lax.cond(
    S(a) > 0.0,
    lambda u, v: (u * 2.0, v, v),
    lambda u, v: (u, v, v * 3),
    w,
    w * 2,
  )


@form('xy')
def cond_one_reads(a, b, c, w):
  return (lax.cond(S(c) > 0.0, lambda: w * 1.0, lambda: jnp.zeros(3)),)


@form('y,y')
def switch3(a, b, c, w):
  i = jnp.clip((S(b) * 3).astype(int) % 3, 0, 2)
  return lax.switch(
    i, [lambda u: (u * w, u), lambda u: (u, w), lambda u: (b, w * 2)], w * 0.5
  )


@form('x')
def platform(a, b, c, w):
  return (
    lax.platform_dependent(a, cpu=lambda u: u * w, default=lambda u: u * 0.5),
  )


@form('')
def platform_w(a, b, c, w):
  return (
    lax.platform_dependent(w, cpu=lambda u: u * w, default=lambda u: u * 0.5),
  )


@form('x')
def assoc(a, b, c, w):
  return (
    lax.associative_scan(
      lambda p, q: (p[0] * q[0], q[0] * p[1] + q[1]),
      (w, jnp.broadcast_to(a, (3,))),
    )[1],
  )


@form('y')
def map_batch(a, b, c, w):
  return (lax.map(lambda u: jnp.sin(u) * b, w, batch_size=2).sum(0),)


@form('y')
def map_plain(a, b, c, w):
  return (lax.map(lambda u: jnp.sin(u) * b, w).sum(0),)


@form('x')
def piecewise(a, b, c, w):
  return (jnp.piecewise(w, [a < 0, a > 0.5], [lambda u: u * 2, 3.0, jnp.sin]),)


@form('')
def psum_both(a, b, c, w):
  return (lax.psum(meet(c * w), AX),)


@form('')
def psum_part(a, b, c, w):
  return (lax.psum(meet(a * w), AX),)


@form(',')
def psum_tree(a, b, c, w):
  r = lax.psum((meet(a), 1.0, meet(w)), 'x')
  return r[0] * r[1], r[2]


@form('y,x')
def psum_tree_mixed(a, b, c, w):
  r = lax.psum(dict(p=meet(c), q=meet(w), n=1.0), 'x')
  return r['p'] * r['n'], r['q'] * a


@form(',', rough=True)
def pmax_part(a, b, c, w):
  return lax.pmax(meet(a * w), AX), lax.pmin(meet(b), AX)


@form('xy,xy')
def gathers(a, b, c, w):
  return lax.all_gather(meet(c), 'x').sum(0), lax.all_gather(
    lax.all_gather(meet(a * w), 'x'), 'y'
  ).sum((0, 1)) + c


@form('xy,x')
def scatters(a, b, c, w):
  return (
    lax.psum_scatter(jnp.concatenate([meet(c), meet(c) * 2]), 'x', tiled=True),
    lax.psum_scatter(jnp.concatenate([meet(w), meet(w) * 2]), 'x', tiled=True),
  )


@form('xy')
def a2a(a, b, c, w):
  return (lax.all_to_all(jnp.stack([meet(c), meet(c * w)]), 'x', 0, 0).sum(0),)


@form('xy,x')
def perm(a, b, c, w):
  return lax.ppermute(meet(c), 'x', [(0, 1), (1, 0)]), lax.ppermute(
    meet(w), 'x', [(1, 0), (0, 1)]
  )


@form('x,xy')
def index(a, b, c, w):
  return w * lax.axis_index('x'), w * lax.axis_index(AX)


@form('x', rough=True)
def key_loop(a, b, c, w):
  def body(i, s):
    k, u = s
    k, k2 = jax.random.split(k)
    return jax.random.fold_in(k, jnp.argmax(a)), u + jax.random.normal(k2, (3,))

  return (lax.fori_loop(0, 3, body, (jax.random.key(0), w))[1],)


@form('x', rough=True)
def key_cond(a, b, c, w):
  k = lax.cond(
    S(a) > 0, lambda k: jax.random.fold_in(k, 1), lambda k: k, jax.random.key(3)
  )
  return (jax.random.uniform(k, (3,)) + w,)


@form('', rough=True)
def key_same(a, b, c, w):
  k = lax.cond(
    S(w) > 0, lambda k: jax.random.fold_in(k, 1), lambda k: k, jax.random.key(3)
  )
  k, _ = lax.scan(
    lambda k, _: (jax.random.split(k)[0], None), k, None, length=2
  )
  return (jax.random.uniform(k, (3,)) + w,)


@form('xy', rough=True)
def key_clone(a, b, c, w):
  k = jax.random.wrap_key_data(
    jax.random.key_data(
      jax.random.fold_in(jax.random.key(1), lax.axis_index('x'))
    )
  )
  return (
    lax.while_loop(
      lambda s: S(s[1]) < 2.0,
      lambda s: (
        jax.random.split(s[0])[0],
        s[1] + jax.random.uniform(s[0], (3,)) + jnp.abs(b),
      ),
      (k, w),
    )[1],
  )


@form('x,')
def weak(a, b, c, w):
  r = lax.fori_loop(0, 2, lambda i, s: (s[0] + S(a), s[1] + 1), (0.0, 0))
  return r[0] * w, r[1] * w


@form('x')
def weak_scan(a, b, c, w):
  r, _ = lax.scan(lambda s, _: (s * 2 + a[0], None), 1.0, None, length=2)
  return (r * w,)


@form('x')
def empty_carry(a, b, c, w):
  _, ys = lax.scan(lambda s, z: ((), z * a), (), w)
  return (ys.sum(0),)


@form('x')
def size0_carry(a, b, c, w):
  e, u = lax.fori_loop(
    0,
    2,
    lambda i, s: (s[0] + a, s[1] * 2 + s[0].sum(0) + a),
    (jnp.zeros((0, 3)), w),
  )
  return (u + e.sum(0),)


@form('y')
def cond_empty(a, b, c, w):
  lax.cond(S(a) > 0, lambda: (), lambda: ())
  return (b * w,)
