# SPDX-License-Identifier: Apache-2.0
"""Ten ordinary programs in ``shard_map`` of any number of layers.

Each has the parameters (w, b) of its layers replicated, and its input split
over the devices. Where ``by_hand``, they have the casts that pristine JAX asks
for, or needs to be right: of parameters that a branch reads whose index varies,
and of carries that come to vary.
"""
import functools

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np

WIDTH, DEVICES = 8, 4
KINDS = ('plain', 'outside', 'inside')


def cast(x):
  if hasattr(lax, 'pcast'):
    return jax.tree.map(lambda x: lax.pcast(x, 'x', to='varying'), x)
  return jax.tree.map(lambda x: lax.pvary(x, 'x'), x)


def dense(x, w, b, hand):
  """Eight operations, and a branch by the data that reads a parameter."""
  x = jnp.tanh(x @ w + b)
  x = x * jax.nn.sigmoid(x) - x.mean()
  b = hand(b)
  return lax.cond(x[0, 0] > 0., lambda x: x * b, lambda x: x + b, x)


def scan_of_scans(x, w, b, hand):
  def outer(c, _):
    c, _ = lax.scan(lambda c, row: (c * b + row.sum(), None), c, w)
    return jnp.sin(c), None
  return lax.scan(outer, x, None, length=2)[0]


def remat(x, w, b, hand):
  return jax.checkpoint(lambda x: jnp.tanh(x @ w) * b + x)(x)


def attention(x, w, b, hand):
  q, k = x @ w, x * b
  return jax.nn.softmax(q @ k.T, axis=-1) @ x + x


def experts(x, w, b, hand):
  y = lax.all_to_all(x, 'x', 0, 0, tiled=True)
  y = jax.nn.relu(y @ w) * b
  return x + lax.all_to_all(y, 'x', 0, 0, tiled=True)


def ring(x, w, b, hand):
  n = DEVICES
  there = lax.ppermute(x, 'x', [(i, (i + 1) % n) for i in range(n)])
  return jnp.tanh(x @ w + there * b)


def rnn(x, w, b, hand):
  """A loop over steps, whose carry begins replicated."""
  def body(s):
    n, c = s
    return n + 1, jnp.tanh(c @ w + x)
  start = jnp.int32(0), hand(jnp.zeros_like(w)[:x.shape[0]])
  _, y = lax.while_loop(lambda s: s[0] < 5, body, start)
  return x + lax.stop_gradient(y) * b


@jax.custom_vjp
def scaled(x, w):
  return x @ w


def _scaled_fwd(x, w):
  return x @ w, (x, w)


def _scaled_bwd(res, ct):
  x, w = res
  dw = x.T @ ct
  return ct @ w.T, lax.psum(dw, 'x')


scaled.defvjp(_scaled_fwd, _scaled_bwd)


def custom_vjp(x, w, b, hand):
  return jnp.tanh(scaled(x, w)) + b


def psum(x, w, b, hand):
  x = jnp.tanh(x @ w + b)
  return x - lax.psum(x.sum(), 'x') / 32.


def gathered(x, w, b, hand):
  """A branch by what all devices have, that sums over them."""
  x = jnp.tanh(x @ w + b)
  largest = jnp.max(lax.all_gather(x, 'x'))
  return lax.cond(largest > .5, lambda x: x / lax.psum(x.sum(), 'x'),
                  lambda x: x * b, x)


PROGRAMS = {f.__name__: f for f in (
    dense, scan_of_scans, remat, attention, experts, ring, rnn, custom_vjp,
    psum, gathered)}


def program(name, kind, layers, by_hand):
  """The function, and its arguments: parameters and input."""
  shard_map = getattr(jax, 'shard_map', None)
  if shard_map is None:
    from jax.experimental.shard_map import shard_map
  mesh = Mesh(np.array(jax.devices()[:DEVICES]), ('x',))
  layer, hand = PROGRAMS[name], cast if by_hand else (lambda x: x)

  def loss(params, x):
    for w, b in params:
      x = layer(x, w, b, hand)
    return lax.psum(jnp.sum(x), 'x')

  inside = jax.grad(loss) if kind == 'inside' else loss
  f = functools.partial(shard_map, mesh=mesh, in_specs=(P(), P('x')),
                        out_specs=P())(inside)
  params = [(np.ones((WIDTH, WIDTH), np.float32),
             np.ones(WIDTH, np.float32))] * layers
  x = np.ones((WIDTH * DEVICES, WIDTH), np.float32)
  return (jax.grad(f) if kind == 'outside' else f), (params, x)
