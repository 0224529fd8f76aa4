# SPDX-License-Identifier: Apache-2.0
"""Programs in which devices agree, of many kinds, and copies that differ."""
import jax
from jax import lax
from jax.extend import core
from jax.interpreters import mlir
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from sanitizer.testing.apart import mapped, XY
from testing.sharding import shard_map, UNCHECKED, partly_manual


def rows():
  return jnp.arange(16.).reshape(4, 4) / 7


def _dtypes(k, b, c, h, i4, bo):
  k = jax.random.fold_in(k, 1)
  r = jax.random.normal(k, (3,))
  x = b.sum() + h.sum().astype(jnp.bfloat16)
  return r, x, c * 2, i4 + 1, ~bo, lax.psum(c, XY), jnp.zeros(0)


def dtypes(mesh):
  return mapped(_dtypes, mesh, P()), (
      jax.random.key(0), jnp.ones(3, jnp.bfloat16),
      jnp.ones(3, jnp.complex64) * 1j, jnp.ones(3, jnp.float8_e4m3fn),
      jnp.ones(3, jnp.int4), jnp.array([True]))


def parted_branch(mesh):
  def f(a, w):
    here = lax.axis_index('x') == 0
    y = lax.cond(here, lambda a, w: lax.psum((a * w).sum(), 'y') * w,
                 lambda a, w: w * 2, a, w)
    return lax.psum(y, 'x')
  return mapped(f, mesh, (P(*XY), P())), (rows(), jnp.ones(2))


def parted_loop(mesh):
  def f(a):
    n = lax.axis_index('x')
    _, y = lax.while_loop(lambda c: c[0] < n + 2,
                          lambda c: (c[0] + 1, c[1] * 2),
                          (0, lax.psum(a.sum(), XY)))
    return lax.psum(y, 'x')
  return mapped(f, mesh, P(*XY)), (rows(),)


def _product(name):
  """A library's product, named as a primitive of JAX's."""
  prim = core.Primitive(name)
  prim.def_abstract_eval(lambda x, y: x)
  mlir.register_lowering(prim, mlir.lower_fun(lambda x, y: x * y, False))
  return prim


_PRODUCTS = [_product(name) for name in (
    'scan', 'cond', 'while', 'jit', 'shard_map', 'custom_linear_solve',
    'custom_vjp_call', 'ppermute', 'axis_index', 'psum')]


def named_as_ours(mesh):
  def f(a):
    for product in _PRODUCTS:
      a = product.bind(a, product.bind(a, a)) / 2
    return lax.pmean(a, XY)
  return mapped(f, mesh, P(*XY)), (rows() / 4,)


def loop_until(mesh):
  def f(a):
    return lax.while_loop(lambda c: lax.psum(jnp.abs(c).sum(), XY) < 1e4,
                          lambda c: c * lax.pmean(c, 'x') + 1, a)
  return mapped(f, mesh, P(*XY), P(*XY)), (rows(),)


def custom_rules(mesh):
  @jax.custom_vjp
  def g(w):
    return jnp.sin(w)
  g.defvjp(lambda w: (g(w), w), lambda w, c: (c * jnp.cos(w),))

  @jax.custom_jvp
  def h(w):
    return jnp.sin(w)
  h.defjvp(lambda p, t: (h(*p), t[0] * jnp.cos(p[0])))

  def f(w, a):
    return lax.pmean((jax.checkpoint(lambda w: g(w) * h(w))(w) * a).sum(), XY)
  return jax.value_and_grad(mapped(f, mesh, (P(), P(*XY)))), (
      jnp.ones(2), rows())


def scanned_gradient(mesh):
  def f(w, a):
    def step(c, x):
      return jnp.tanh(c * w) + x, c.sum()
    c, _ = lax.scan(step, a, jnp.arange(3.))
    return lax.psum((c * w).sum(), XY)
  return jax.value_and_grad(mapped(f, mesh, (P(), P(*XY)))), (
      jnp.ones(2), rows())


def transformed(mesh):
  def f(w, a):
    return lax.psum((jnp.sin(w) * a).sum(), XY)
  g = mapped(f, mesh, (P(), P(*XY)))

  def h(w, a):
    return (jax.jvp(g, (w[0], a), (w[0], a)),
            jax.vmap(jax.grad(g), (0, None))(w, a), jax.jacrev(g)(w[0], a))
  return h, (jnp.ones((3, 2)), rows())


def collectives(mesh):
  def f(a):
    b = lax.ppermute(a, 'x', [(0, 1), (1, 0)])
    c = lax.all_to_all(a, 'y', 0, 0, tiled=True)
    d = lax.psum_scatter(a, 'x', scatter_dimension=0, tiled=True)
    e = lax.all_gather(a, 'x').sum()
    return b + c, d, lax.psum(e, XY), lax.pmax(lax.pmin(a, 'x'), 'y')
  return mapped(f, mesh, P(*XY), (P(*XY), P(*XY), P(), P())), (rows(),)


def nested(mesh):
  def g(a, w):
    return lax.psum(a * w, 'y'), w * 2

  def f(a, w):
    s, w2 = shard_map(g, in_specs=(P(None, 'y'), P()), out_specs=(P(), P()),
                      axis_names={'y'})(a, w)
    def step(c, x):
      return c + lax.psum(x, 'x'), c
    return lax.scan(step, w2.sum(), jnp.arange(3.) + s.sum())
  if not hasattr(jax, 'shard_map'):  # up to 0.6.0 nested ones are of one mesh
    return partly(mesh)
  return mapped(f, mesh, (P('x'), P()), axis_names={'x'}), (
      rows(), jnp.ones(2))


def partly(mesh):
  def f(a, w):
    s = lax.psum((a * w).sum(), 'x')
    def step(c, x):
      return c + x * s, c
    return lax.scan(step, w, jnp.arange(3.))
  return mapped(f, mesh, (P('x'), P()), **partly_manual('y', of=XY)), (
      rows(), jnp.ones(4))


def outer_loops(mesh):
  g = mapped(lambda w, a: (w * 2, lax.psum(a * w, XY)), mesh, (P(), P(*XY)))

  def f(w, a):
    def step(w, x):
      return g(w, a)
    w, s = lax.scan(step, w, jnp.arange(2.))
    n, w = lax.while_loop(lambda c: g(c[1], a)[1].sum() < 1e3,
                          lambda c: (c[0] + 1, g(c[1], a)[0]), (0, w))
    return lax.cond(n > 0, lambda: g(w, a)[0], lambda: w), s
  return jax.jit(f), (jnp.ones(2), rows())


def mapped_over(mesh):
  def f(w, a):
    one = lambda w: lax.cond(w > 1, lambda: w * lax.psum(a.sum(), XY),
                             lambda: w)
    return jax.vmap(one)(w), jax.vmap(lambda w: lax.while_loop(
        lambda c: c < 5, lambda c: c + w, w))(w)
  return mapped(f, mesh, (P(), P(*XY))), (jnp.arange(1., 4.), rows())


def functions(mesh):
  def f(w, a):
    r = lax.fori_loop(0, 3, lambda i, c: c + i * lax.pmean(a.mean(), XY), 0.)
    return (lax.associative_scan(jnp.add, w), lax.map(jnp.sin, w), jnp.sort(w),
            jnp.linalg.solve(jnp.eye(2) * 2 + w, w), r, lax.top_k(w, 1),
            w.at[0].set(3.), jnp.log(w - 2), lax.psum(a / 0, XY),
            lax.switch(jnp.int32(1), [lambda: w, lambda: w * 2]))
  return mapped(f, mesh, (P(), P(*XY))), (jnp.ones(2), rows())


def solved(mesh):
  def f(w, a):
    scaled = lambda x: x * lax.pmean(a.sum(), XY)
    y = lax.custom_linear_solve(
        scaled, w, lambda f, b: b / f(jnp.ones_like(b)), symmetric=True)
    z = jax.custom_derivatives.linear_call(
        lambda r, x: lax.psum(r * x, XY), lambda r, t: r * t, a.sum(), w)
    _, n = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1]),
                          (0, 7))  # a literal that stays one
    return y + z, n
  return mapped(f, mesh, (P(), P(*XY))), (jnp.ones(2), rows())


def rooted(mesh):
  def f(w, a):
    def newton(g, x):
      return lax.fori_loop(0, 3, lambda _, x: x - g(x) / 2., x)
    def step(c, x):
      root = lax.custom_root(lambda y: 2. * y - x - c, jnp.float32(1.), newton,
                             lambda g, y: y / g(jnp.ones_like(y)))
      return c + root, root
    c, roots = lax.scan(step, jnp.float32(0.), a.sum(0))
    chosen = lax.cond(a.sum() > 2., lambda: roots[0], lambda: c)
    return lax.pmean(w * (c + chosen), XY)
  return mapped(f, mesh, (P(), P(*XY))), (jnp.ones(2), rows())


def unchecked(mesh):
  def f(w, a):
    def step(c, x):
      return c + lax.psum(a.sum(), XY) * x, lax.axis_index('x')
    c, i = lax.scan(step, w, jnp.arange(3.))
    _, n = lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] * w),
                          (0, w))
    return c, i[None], n, lax.all_gather(a, 'x').sum(0)
  return mapped(f, mesh, (P(), P(*XY)), (P(), P('x'), P(), P(None, 'y')),
                **UNCHECKED), (jnp.ones(2), rows())


def unchecked_gradient(mesh):
  def f(w, a):
    return lax.pmean((jnp.sin(w) * a).sum(), XY)
  return jax.value_and_grad(mapped(f, mesh, (P(), P(*XY)), **UNCHECKED)), (
      jnp.ones(2), rows())


def refs(mesh):
  if not hasattr(jax, 'new_ref'):
    return functions(mesh)

  def f(w, a):
    r = jax.new_ref(w)
    r[...] += lax.psum(a.sum(), XY)
    def step(c, x):
      r[0] += x
      return c + r[1], c
    c, _ = lax.scan(step, 0., jnp.arange(3.))
    return r[...], c
  return mapped(f, mesh, (P(), P(*XY))), (jnp.ones(2), rows())


RIGHT = {f.__name__: f for f in (
    dtypes, parted_branch, parted_loop, loop_until, custom_rules,
    scanned_gradient, transformed, collectives, nested, partly, outer_loops,
    mapped_over, named_as_ours, functions, solved, rooted, unchecked,
    unchecked_gradient, refs)}


def copies(mesh, spec, at, shape=(3,), dtype=np.float32):
  """An array whose copies differ: one device holds 1 where others hold 0."""
  sharding = jax.sharding.NamedSharding(mesh, spec)
  held = [jax.device_put(np.full(shape, n == at).astype(dtype), d)
          for n, d in enumerate(mesh.devices.flat)]
  return jax.make_array_from_single_device_arrays(shape, sharding, held)
