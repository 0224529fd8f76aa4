# SPDX-License-Identifier: Apache-2.0
"""Cases for derivatives taken inside of shard_map: remat, solves, own rules."""
import functools

import jax
from jax import ad_checkpoint
from jax import lax
import jax.numpy as jnp
import numpy as np
from varying.testing.derivatives import CASES
from varying.testing.derivatives import Summed
from varying.testing.derivatives import case


POLICIES = {
    'none': None,
    'everything': 'everything_saveable',
    'nothing': 'nothing_saveable',
    'dots': 'dots_saveable',
    'dots_no_batch': 'dots_with_no_batch_dims_saveable',
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
  return gx, Summed(gw)


CASES.update({f'remat_{n}': functools.partial(remat, p)
              for n, p in POLICIES.items()})


@case
def remat_vjp(x, w):
  f = jax.checkpoint(lambda x, w: jnp.sum(jnp.sin(jnp.sin(x * w))))
  gx, gw = jax.vjp(f, x, w)[1](1.)
  return gx, Summed(gw)


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


@case
def custom_linear_solve(x, w):
  def f(a, b):
    return jnp.sum(lax.custom_linear_solve(
        lambda x: a @ x, b, lambda matvec, b: jnp.linalg.solve(a, b),
        lambda vecmat, b: jnp.linalg.solve(a.T, b)) ** 2)
  a = jnp.eye(3, dtype=x.dtype) * 3. + x.T @ x
  ga, gw = jax.grad(f, (0, 1))(a, w)
  return ga, Summed(gw), jax.jvp(f, (a, w), (jnp.ones_like(a), x[0]))[1]


@case
def custom_linear_solve_shared_diagonal(x, w):
  def f(a, b):
    return jnp.sum(lax.custom_linear_solve(
        lambda x: a * x, b, lambda matvec, b: b / a, symmetric=True) ** 2)
  ga, gb = jax.grad(f, (0, 1))(w, x[0])
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
  return v, gx, Summed(gw)


def custom_vjp_partly(options, within, x, w):
  f = WITHIN[within](product(**options))
  return jax.grad(f)(x, w), Summed(jax.grad(f, 1)(x, w))


CASES.update({f'custom_vjp_in_{n}': functools.partial(
    custom_vjp, {}, n) for n in WITHIN})
CASES.update({f'custom_vjp_partly_in_{n}': functools.partial(
    custom_vjp_partly, {}, n) for n in ('itself', 'scan')})
for o in ('symbolic_zeros', 'optimize_remat'):
  CASES.update({f'custom_vjp_{o}_in_{n}': functools.partial(
      custom_vjp, {o: True}, n) for n in ('itself', 'scan', 'remat')})
  CASES[f'custom_vjp_{o}_partly'] = functools.partial(
      custom_vjp_partly, {o: True}, 'itself')


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
