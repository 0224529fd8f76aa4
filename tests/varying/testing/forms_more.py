# SPDX-License-Identifier: Apache-2.0
"""Forms: vmap, callbacks, library functions, refs."""
import jax
from jax import lax
import jax.numpy as jnp
from varying.testing.forms import LATER
from varying.testing.forms import form
from varying.testing.forms import meet

S = jnp.sum
new_ref = getattr(jax, 'new_ref', None)


@form(',x')
def jit_in(a, b, c, w):
  f = jax.jit(lambda u, v: lax.scan(lambda s, z: (s * v + z, None), u, u)[0])
  return f(w, w), f(w, a)


@form('x')
def vmap_in(a, b, c, w):
  return (
    jax.vmap(
      lambda u, v: lax.cond(S(v) > 0, lambda: u * v, lambda: u), (0, None)
    )(jnp.stack([w, w * 2]), a).sum(0),
  )


@form('xy')
def vmap_in_pred(a, b, c, w):
  return (
    jax.vmap(lambda u: lax.cond(S(u) > 0, lambda: u * b * w, lambda: u))(
      jnp.stack([a, -a])
    ).sum(0),
  )


@form('xy', rough=True)
def vmap_in_while(a, b, c, w):
  return (
    jax.vmap(
      lambda u, v: lax.while_loop(
        lambda s: S(s) < 3, lambda s: s + jnp.abs(b) + 0.1, u * v
      ),
      (0, None),
    )(jnp.stack([a, -a]), w).sum(0),
  )


@form('y')
def vmap_in_psum(a, b, c, w):
  return (
    jax.vmap(lambda u: lax.psum((meet(u), 1.0), 'x')[0])(
      jnp.stack([c, c * 2])
    ).sum(0),
  )


@form('x', rough=True)
def callback(a, b, c, w):
  return (
    jax.pure_callback(
      lambda u, v: (u * v).astype('f'),
      jax.ShapeDtypeStruct((3,), 'float32'),
      a,
      w,
      vmap_method='sequential',
    ),
  )


@form('x', rough=True, ref=True)
def bits(a, b, c, w):
  s = jnp.array([1, 2, 3, 4], 'uint32') + jnp.argmax(a).astype('uint32')
  return ((lax.rng_bit_generator(s, (3,))[1] % 7).astype('f') * w,)


@form('x')
def sort_multi(a, b, c, w):
  k, v = lax.sort((a, w), num_keys=1)
  return (v,)


@form('x,x')
def scatter_add(a, b, c, w):
  return w.at[jnp.argmax(a)].add(1.0), jnp.zeros(3).at[jnp.argsort(a)].set(w)


@form('x')
def dus(a, b, c, w):
  return (lax.dynamic_update_slice(w, a[:1], (0,)),)


@form('')
def const_only(a, b, c, w):
  return (lax.fori_loop(0, 2, lambda i, s: s + 1.0, jnp.zeros(3)) + w,)


@form('x')
def linsolve(a, b, c, w):
  m = jnp.eye(3) * 3 + jnp.outer(a, a)
  return (
    lax.custom_linear_solve(
      lambda v: m @ v,
      w,
      lambda mv, r: jnp.linalg.solve(m, r),
      symmetric=True,
      transpose_solve=lambda mv, r: jnp.linalg.solve(m.T, r),
    ),
  )


@form('x')
def cg(a, b, c, w):
  m = jnp.eye(3) * 3 + jnp.outer(a, a)
  return (jax.scipy.sparse.linalg.cg(lambda v: m @ v, w, maxiter=5)[0],)


@form('x', fwd=True)
def custom_root(a, b, c, w):
  def solve(f, x0):
    return lax.fori_loop(0, 20, lambda i, x: x - 0.3 * f(x), x0)

  return (
    lax.custom_root(
      lambda x: x + 0.1 * jnp.sin(x) - a,
      w,
      solve,
      lambda g, y: y / g(jnp.ones(3)),
    ),
  )


@form('xy')
def optbar(a, b, c, w):
  return (lax.optimization_barrier((a, b, w))[0] * b,)


@form('y')
def closure_conv(a, b, c, w):
  f, consts = jax.closure_convert(
    lambda u: lax.scan(lambda s, z: (s * w + z, None), u, u)[0], w
  )
  return (f(b, *consts),)


@form('x,')
def scan_rev_unroll(a, b, c, w):
  return lax.scan(
    lambda s, z: ((s[0] * a + z, s[1] + z), None),
    (w, w),
    w,
    reverse=True,
    unroll=2,
  )[0]


@form('x')
def cumsum_loop(a, b, c, w):
  return (
    lax.map(
      lambda i: lax.dynamic_index_in_dim(a, i, keepdims=False), jnp.arange(3)
    )
    * w,
  )


@form('x')
def stopgrad(a, b, c, w):
  return (
    lax.scan(lambda s, z: (lax.stop_gradient(s) * w + z * a, None), w, w)[0],
  )


@form('x', rough=True)
def while_cond_capture(a, b, c, w):
  return (
    lax.while_loop(lambda s: S(s) < S(jnp.abs(a)) * 3, lambda s: s + 0.5, w),
  )


@form('x', rough=True)
def while_pred_only(a, b, c, w):
  n = lax.while_loop(lambda i: i < jnp.argmax(a), lambda i: i + 1, 0)
  return (n * w,)


@form('x', rough=True)
def fori_lower_var(a, b, c, w):
  return (lax.fori_loop(jnp.argmax(a), 3, lambda i, s: s + i, w),)


@form(',x')
def switch_const(a, b, c, w):
  return lax.switch(1, [lambda: (w, a), lambda: (w * 2, w)])


@form('x')
def cond_of_a_tree(a, b, c, w):
  return (
    lax.cond(S(a) > 0, lambda u: u['p'] * w, lambda u: u['q'], dict(p=w, q=w)),
  )


if new_ref and LATER:

  @form('x', ref=True)
  def ref_sum(a, b, c, w):
    r = new_ref(jnp.zeros(3))

    def body(s, z):
      r[...] += a * z * w
      return s, None

    lax.scan(body, 0.0, w)
    return (r[...],)

  @form(',x', ref=True)
  def ref_before_after(a, b, c, w):
    r = new_ref(w)
    u = r[...]
    r[...] = u * a
    return u, r[...]

  @form('x,', ref=True)
  def ref_two(a, b, c, w):
    r, q = new_ref(w), new_ref(w)

    def body(i, s):
      r[...] = r[...] * a
      q[...] = q[...] * w
      return s

    lax.fori_loop(0, 2, body, ())
    return r[...], q[...]

  @form('y', ref=True, rough=True)
  def ref_while(a, b, c, w):
    r = new_ref(w)

    def body(i):
      r[...] = r[...] + w
      return i + 1

    lax.while_loop(lambda i: i < jnp.argmax(b), body, 0)
    return (r[...],)

  @form('xy', ref=True)
  def ref_cond(a, b, c, w):
    r = new_ref(w)

    def yes():
      r[...] = r[...] * b

    lax.cond(S(a) > 0, yes, lambda: None)
    return (r[...],)

  @form('x', ref=True)
  def ref_index(a, b, c, w):
    r = new_ref(w)
    r[jnp.argmax(a)] = 2.0
    return (r[...] * w,)

  @form('x,y', ref=True)
  def ref_jit(a, b, c, w):
    r = new_ref(w)

    @jax.jit
    def f(u):
      r[...] = r[...] * u
      return u

    f(a)
    q = new_ref(w)

    @jax.jit
    def g(q, u):
      q[...] += u

    g(q, b)
    return r[...], q[...]

  @form('x', ref=True)
  def ref_vmap(a, b, c, w):
    def f(u):
      r = new_ref(u)
      r[...] = r[...] * a
      return r[...]

    return (jax.vmap(f)(jnp.stack([w, w * 2])).sum(0),)

  @form('x', ref=True)
  def ref_grad_in(a, b, c, w):
    def f(u):
      r = new_ref(jnp.zeros(3))

      def body(i, s):
        r[...] += u * a
        return s

      lax.scan(lambda s, _: (body(0, s), None), (), None, length=2)
      return S(r[...] ** 2)

    return (jax.grad(f)(a),)

  @form('', ref=True)
  def ref_freeze(a, b, c, w):
    r = new_ref(w)
    lax.fori_loop(0, 2, lambda i, s: (r.__setitem__(..., r[...] + w), s)[1], 0)
    return (jax.freeze(r) if hasattr(jax, 'freeze') else r[...],)

  @form('x', ref=True)
  def ref_nested(a, b, c, w):
    r = new_ref(w)

    def outer(s, z):
      def inner(s, z):
        r[...] = lax.cond(S(w) > 0, lambda: r[...] * a, lambda: r[...])
        return s, None

      lax.scan(inner, (), w)
      return s, r[...]

    _, ys = lax.scan(outer, (), w)
    return (ys.sum(0),)
