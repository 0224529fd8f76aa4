# SPDX-License-Identifier: Apache-2.0
"""Tells which of our functions run for any program, by one of ours.

No fix concerns it: what runs while it is traced is no reason why another
program differs. It takes as long as to import jax and to compile a few lines.
"""

from __future__ import annotations

import dataclasses

from jax_mend import runs

PROGRAM = """\
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
try:
  from jax import shard_map
except ImportError:
  from jax.experimental.shard_map import shard_map
mesh = Mesh(jax.devices()[:1], "x")
c = jnp.arange(4.)
def loss(w, x):
  return jnp.mean((jnp.tanh(x * w + c.sum()) - x) ** 2)
def mapped(f):
  return jax.jit(shard_map(f, mesh=mesh, in_specs=(P(), P("x")), out_specs=P()))
x = jax.device_put(c, NamedSharding(mesh, P("x")))
jax.value_and_grad(mapped(lambda w, x: jax.lax.psum(loss(w, x), "x")))(2., x)
if hasattr(jax, "shard_map"):  # 0.6.0 refuses it
  eager = shard_map(lambda w, x: jax.lax.psum(w * x[0], "x"), mesh=mesh,
                    in_specs=(P(), P("x")), out_specs=P())
  print(*jax.value_and_grad(eager)(1., c))
  mapped(lambda w, x: jax.lax.pmean(jax.grad(loss, 1)(w, x), "x"))(c, c)
jax.jit(jax.vmap(jax.grad(lambda x: jnp.sin(x) @ x)))(jnp.ones((2, 2)))
print(x[0], jnp.asarray([1, 2]).sum())
"""


def functions(settings: runs.Settings, folder: str, words: str) -> set[str]:
  """The names of the functions, as a run's programs have them.

  Args:
    settings: of the comparison.
    folder: a new one.
    words: the value of JAX_MEND.
  """
  mine = dataclasses.replace(settings, command=["-c", PROGRAM],
                             stdin=None)
  run = runs.run(mine, folder, words, evidence=True)
  return {name for program in run.programs
          for names in program.patches.values() for name in names}
