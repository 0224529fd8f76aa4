# SPDX-License-Identifier: Apache-2.0
"""The walk over the traces around a value, in and out of a shard_map."""
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.interpreters import partial_eval as pe
from jax._src.mend import traces
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.sharding import shard_map
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

X = np.arange(16., dtype=np.float32).reshape(4, 4)


def seen_within(spmd_axis_name, jit):
  """The kinds of the traces around a scan's body in a batched shard_map."""
  seen = []

  def body(c, _):
    seen.append([type(t).__name__
                 for t in traces.enclosing(core.trace_ctx.trace)])
    return c + 1., None

  mapped = shard_map(
      lambda x: lax.scan(body, x, None, length=2)[0],
      mesh=make_mesh(2, 2), in_specs=P('y'), out_specs=P('y'))
  maybe_jit(jit)(jax.vmap(mapped, spmd_axis_name=spmd_axis_name))(X)
  return seen[-1]


class EnclosingTest(jtu.JaxTestCase):

  def test_a_batch_that_names_an_axis_is_seen_beyond_a_jaxpr(self):
    # The least that 0.6.0 must see: its jaxprs have no parents by themselves.
    for jit in (False, True):
      first, *others = seen_within('x', jit)
      self.assertEqual(first, 'DynamicJaxprTrace')  # the scan's
      self.assertIn('BatchTrace', others)

  def test_others_are_seen_where_jaxprs_have_parents(self):
    first, *others = seen_within(None, True)
    self.assertEqual(first, 'DynamicJaxprTrace')
    self.assertEqual('BatchTrace' in others,
                     hasattr(pe.DynamicJaxprTrace, 'parent_trace'))

  def test_a_jaxpr_on_the_way_is_staged(self):
    staged = []

    def f(x):
      staged.append(traces.is_staged(core.trace_ctx.trace))
      return x * 2.

    jax.vmap(f)(X)
    jax.jit(jax.vmap(f))(X)
    jax.vmap(jax.jit(f))(X)
    jax.jvp(f, (X,), (X,))
    lax.cond(True, jax.vmap(f), lambda x: x, X)
    self.assertEqual(staged, [False, True, True, False, True])

  def test_layers_of_a_tracer(self):
    kinds = []

    def f(x):
      kinds.append([type(t).__name__ for t in traces.layers(x)])
      return jnp.sum(x * x)

    jax.vmap(jax.grad(f))(X)
    self.assertLen(kinds[0], 2)
    self.assertEqual(kinds[0][1], 'BatchTracer')
    jax.jit(lambda x: jax.jvp(f, (x,), (x,)))(X)
    self.assertEqual(kinds[1][-1], 'DynamicJaxprTracer')
