# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What the tests of the analysis share: a jaxpr's solution at given axes."""
import jax
from jax._src import test_util as jtu
from jax._src.varying import flow
from jax._src.varying import types as vt
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from testing.sharding import shard_map
from varying.testing.common import make_mesh

X, Y, XY, NONE = map(frozenset, ['x', 'y', 'xy', ''])


def body_of(f, mesh, *args):
  """The jaxpr inside a shard_map of f, with every argument replicated."""
  jaxpr = jax.make_jaxpr(shard_map(f, mesh=mesh, in_specs=P(), out_specs=P()))(
      *args)
  return vt.open_jaxpr(jaxpr.jaxpr.eqns[0].params['jaxpr'])


class RegionTestCase(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    if len(jax.devices()) < 4:
      self.skipTest('needs four devices')
    self.mesh = make_mesh(2, 2)

  def outs(self, f, *axes):
    jaxpr = body_of(f, self.mesh, *(jnp.float32(1.) for _ in axes))
    return flow.Region(jaxpr).run(axes)
