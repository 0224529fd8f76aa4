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
"""A composite whose size is known only when it is called."""
import jax
from jax import export
import jax.numpy as jnp
import numpy as np

REPORT = "jax#40486"


def symbolic_composites():
  """an exported composite of a symbolic size can be called"""
  f = jax.lax.composite(lambda x: jnp.sin(x) + x.shape[0], "my.composite")
  exp = export.export(jax.jit(f))(
      jax.ShapeDtypeStruct(export.symbolic_shape("a"), np.float32))
  got = exp.call(np.zeros(3, np.float32))
  np.testing.assert_array_equal(got, [3, 3, 3])
  return str(got.tolist())
