# SPDX-License-Identifier: Apache-2.0
"""The analysis of loops and branches in shard_map: exact, and linear.

Apart from `flow_test.py`: these need the patches that make
loops and branches use the analysis.
"""
import inspect

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import core
from jax._src import test_util as jtu
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax.experimental import compute_on
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.sharding import shard_map
from varying.testing.common import make_mesh
from varying.testing.regions import NONE
from varying.testing.regions import RegionTestCase
from varying.testing.regions import X
from varying.testing.regions import XY
from varying.testing.regions import Y
from varying.testing.regions import body_of

config.parse_flags_with_absl()

def nested_loops(depth, x, c):
  if not depth:
    return c + x
  return lax.fori_loop(0, 2, lambda i, d: nested_loops(depth - 1, x, d), c)


class VaryingRegionsTest(RegionTestCase):

  def test_least_solution_of_a_loop(self):
    # a takes b's axes, b takes its own, c none; n only counts.
    def f(x, y):
      body = lambda s: (s[0] + 1, s[1] + s[2], s[2] + y, s[3] * 2.)
      return lax.while_loop(lambda s: s[0] < 3, body, (0, x, x, 1.))
    self.assertEqual(self.outs(f, NONE, Y), [NONE, Y, Y, NONE])
    self.assertEqual(self.outs(f, X, Y), [NONE, XY, XY, NONE])

  def test_predicate_reaches_what_changes(self):
    def f(x, y):
      body = lambda s: (s[0] + 1., s[1] * 2., s[2])
      return lax.while_loop(lambda s: s[0] < x, body, (0., 1., y))
    self.assertEqual(self.outs(f, X, Y), [X, X, Y])

  def test_index_reaches_outputs(self):
    def f(x, y):
      return lax.cond(x > 0, lambda: (y, 1.), lambda: (y * 2., 2.))
    self.assertEqual(self.outs(f, X, NONE), [X, X])
    self.assertEqual(self.outs(f, X, Y), [XY, X])

  def test_visits_grow_no_faster_than_depth_times_size(self):
    def count(depth):
      before = flow.visits
      jax.make_jaxpr(shard_map(
          lambda x: nested_loops(depth, x[0], 0.)[None], mesh=self.mesh,
          in_specs=P('x'), out_specs=P('x')))(jnp.ones(2))
      return flow.visits - before
    counts = [count(depth) for depth in range(1, 17)]
    size = counts[0] + 2  # equations that one more level adds, at most
    for depth, n in enumerate(counts, 1):
      self.assertLessEqual(n, depth * depth * size)
    # Twice the depth visits at most four times as much, not its square.
    self.assertLessEqual(counts[15], 4.5 * counts[7])

  def test_visits_of_a_long_chain(self):
    # Each round of the outer loop makes one more carry of the inner one vary.
    def count(n):
      def f(x):
        def outer(i, c):
          inner = lambda j, c: (*(a + b for a, b in zip(c, c[1:])),
                                c[-1] + x[0])
          return lax.fori_loop(0, 2, inner, c)
        return lax.fori_loop(0, 2, outer, (0.,) * n)[0][None]
      before = flow.visits
      jax.make_jaxpr(shard_map(f, mesh=self.mesh, in_specs=P('x'),
                               out_specs=P('x')))(jnp.ones(2))
      return flow.visits - before
    self.assertLessEqual(count(16), 5 * count(8))

  @parameterized.parameters(1, 4)
  def test_retyped_jaxpr_is_well_typed(self, depth):
    def f(x, c):
      y = nested_loops(depth, x, c)
      return lax.cond(y > 0, lambda: y * c, lambda: c + 1.), lax.psum(y, 'x')
    jaxpr = body_of(f, self.mesh, jnp.float32(1.), jnp.float32(2.))
    region = flow.Region(jaxpr)
    outs = region.run([X, NONE])
    self.assertEqual(outs, [X, NONE])
    new = retype.rebuild(region)
    self.assertEqual([vt.varying(v.aval) for v in new.outvars], outs)
    self.assertEqual([vt.varying(v.aval) for v in new.invars], [X, NONE])
    bound = set(new.invars) | set(new.constvars)
    for eqn in new.eqns:
      for v in eqn.invars:
        self.assertTrue(isinstance(v, core.Literal) or v in bound)
      bound.update(eqn.outvars)


class ComputeOnInABranchTest(jtu.JaxTestCase):
  """Functional compute_on in a branch that devices leave apart."""

  def test_gradient_in_a_branch_of_some_devices(self):
    # What functional compute_on calls is re-typed, as what jit calls is.
    transform = getattr(compute_on, 'compute_on2', compute_on.compute_on)
    if 'out_memory_spaces' not in inspect.signature(transform).parameters:
      self.skipTest('compute_on is no function of functions')
    if jax.__version_info__ == (0, 10, 1):
      self.skipTest('jaxlib 0.10.1 compiles no compute_on2 for CPUs')
    placed = transform(lambda w, x: w * jnp.sin(x), compute_type='device_host',
                       out_memory_spaces=jax.memory.Space.Device)

    def body(x, w):
      return lax.cond(x[0] > 2., lambda: placed(w, x), lambda: x * 2.)

    x = np.arange(1., 5., dtype=np.float32)
    f = shard_map(body, mesh=make_mesh(4), in_specs=(P('x'), P()),
                  out_specs=P('x'))
    g = jax.grad(lambda w: jnp.sum(f(x, w)))
    want = np.sin(x[2:]).sum()
    self.assertAllClose(g(np.float32(3.)), want)
    self.assertAllClose(jax.jit(g)(np.float32(3.)), want)
