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
"""Functional compute_on in a branch that devices leave apart."""
import inspect

from absl.testing import absltest
import jax
from jax import lax
from jax._src import compute_on
from jax._src import test_util as jtu
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from varying.testing.common import make_mesh
from varying.testing.common import shard_map

jax.config.parse_flags_with_absl()


class ComputeOnTest(jtu.JaxTestCase):

  def test_gradient_in_a_branch_of_some_devices(self):
    # What functional compute_on calls is re-typed, as what jit calls is.
    transform = compute_on.compute_on
    if 'compute_type' not in inspect.signature(
        transform).parameters or not hasattr(compute_on, 'compute_on_p') or (
            jax.__version_info__ < (0, 11)):
      self.skipTest('compute_on is no function of functions')
    placed = transform(lambda w, x: w * jnp.sin(x), compute_type='device_host',
                       out_memory_spaces=jax.memory.Space.Device)

    def body(x, w):
      return lax.cond(x[0] > 2., lambda: placed(w, x), lambda: x * 2.)

    x = np.arange(1., 5., dtype=np.float32)
    mesh = make_mesh(4)
    f = shard_map(body, mesh=mesh, in_specs=(P('x'), P()), out_specs=P('x'))
    g = jax.grad(lambda w: jnp.sum(f(x, w)))
    want = np.sin(x[2:]).sum()
    self.assertAllClose(g(np.float32(3.)), want)
    self.assertAllClose(jax.jit(g)(np.float32(3.)), want)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
