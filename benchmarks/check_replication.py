# SPDX-License-Identifier: Apache-2.0
"""A training step of a decoder under check_replication, against itself.

  python benchmarks/check_replication.py [LAYERS] [ROUNDS]

Run it with a mended jax. The step is data and tensor parallel on 4 virtual
devices of the CPU, its layers are scanned and checkpointed. Printed: the time
of a step as it is and checked, of an inference as well, the ratio of the
fastest of each, which take turns, and the time to trace and compile.
"""
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
from jax import lax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np

try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map

LIMIT = 3.0
BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 8, 64, 128, 4, 256
SPECS = {"qkv": P(None, None, None, "model"), "out": P(None, "model"),
         "up": P(None, None, "model"), "down": P(None, "model"),
         "norm": P()}


def weights(layers):
  keys = iter(jax.random.split(jax.random.key(0), 8))
  draw = lambda *shape: jax.random.normal(next(keys), shape) / shape[-2] ** .5
  return {"layers": {
      "qkv": draw(layers, 3, WIDTH, WIDTH), "out": draw(layers, WIDTH, WIDTH),
      "up": draw(layers, WIDTH, 4 * WIDTH),
      "down": draw(layers, 4 * WIDTH, WIDTH),
      "norm": jnp.ones((layers, 2, WIDTH))}, "embed": draw(VOCABULARY, WIDTH)}


def norm(x, scale):
  return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * scale


def attention(x, layer):
  q, k, v = jnp.einsum("bld,zdh->zblh", x, layer["qkv"])
  split = lambda a: a.reshape(*a.shape[:2], -1, WIDTH // HEADS)
  q, k, v = map(split, (q, k, v))
  scores = jnp.einsum("blhd,bmhd->bhlm", q, k) / (WIDTH // HEADS) ** .5
  mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
  scores = jax.nn.softmax(jnp.where(mask, scores, -1e9))
  mixed = jnp.einsum("bhlm,bmhd->blhd", scores, v)
  return lax.psum(mixed.reshape(*mixed.shape[:2], -1) @ layer["out"], "model")


def block(x, layer):
  x = x + attention(norm(x, layer["norm"][0]), layer)
  hidden = jax.nn.gelu(norm(x, layer["norm"][1]) @ layer["up"])
  return x + lax.psum(hidden @ layer["down"], "model"), None


def loss(params, tokens, scan=lax.scan):
  x, _ = scan(jax.checkpoint(block), params["embed"][tokens],
              params["layers"])
  logits = jax.nn.log_softmax(x @ params["embed"].T)
  picked = jnp.take_along_axis(logits[:, :-1], tokens[:, 1:, None], -1)
  return lax.pmean(-picked.mean(), "data")


def seconds(f, *args):
  start = time.perf_counter()
  jax.block_until_ready(f(*args))
  return time.perf_counter() - start


def main(layers=24, rounds=5):
  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
  specs = {"layers": SPECS, "embed": P()}
  params = jax.tree.map(
      lambda p, s: jax.device_put(p, NamedSharding(mesh, s)), weights(layers),
      specs)
  tokens = jax.device_put(
      jax.random.randint(jax.random.key(1), (BATCH, LENGTH), 0, VOCABULARY),
      NamedSharding(mesh, P("data")))
  mapped = shard_map(loss, mesh=mesh, in_specs=(specs, P("data")),
                     out_specs=P())

  def step(params, tokens):
    value, grads = jax.value_and_grad(mapped)(params, tokens)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

  worst = 0.
  for name, f in (("training step", step), ("inference", mapped)):
    plain, checked = jax.jit(f), jax.debug.check_replication(f)
    first = [seconds(g, params, tokens) for g in (plain, checked)]
    times = [[seconds(g, params, tokens) for g in (plain, checked)]
             for _ in range(rounds)]
    before, after = map(min, zip(*times))
    worst = max(worst, after / before)
    print(f"{name:14} {layers} layers: {before * 1e3:7.1f} ms, checked "
          f"{after * 1e3:7.1f} ms, ratio {after / before:.2f} (limit {LIMIT});"
          f" first call {first[0]:.1f} s, checked {first[1]:.1f} s")
  return worst > LIMIT


if __name__ == "__main__":
  sys.exit(main(*map(int, sys.argv[1:])))
