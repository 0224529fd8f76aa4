# SPDX-License-Identifier: Apache-2.0
"""What the tests of the analysis share: a jaxpr's solution at given axes."""
import jax
from jax._src.varying import flow
from jax._src.varying import types as vt
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from testing.oracle import MeshTestCase
from testing.sharding import shard_map
from varying.testing.common import make_mesh

X, Y, XY, NONE = map(frozenset, ['x', 'y', 'xy', ''])


def body_of(f, mesh, *args):
  """The jaxpr inside a shard_map of f, with every argument replicated."""
  jaxpr = jax.make_jaxpr(shard_map(f, mesh=mesh, in_specs=P(), out_specs=P()))(
      *args)
  return vt.open_jaxpr(jaxpr.jaxpr.eqns[0].params['jaxpr'])


class RegionTestCase(MeshTestCase):

  def setUp(self):
    super().setUp()
    self.mesh = make_mesh(2, 2)

  def outs(self, f, *axes):
    jaxpr = body_of(f, self.mesh, *(jnp.float32(1.) for _ in axes))
    return flow.Region(jaxpr).run(axes)
