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
"""What a stored executable calls and runs on (jax#28908, jax#24982)."""
"""What is kept of executables that were read back."""

import gc

from absl.testing import absltest
import jax
from jax._src import config
from jax._src import test_util as jtu
from jax._src.ahead_of_time import machine_code
from jax.experimental import serialize_executable
import jax.numpy as jnp

config.parse_flags_with_absl()

# Newer releases are told the devices.
DEVICES = {} if jax.__version_info__ < (0, 10) else {
    'execution_devices': jax.devices()[:1]}


class MachineCodeTest(jtu.JaxTestCase):

  def test_goes_with_what_was_loaded(self):
    parts = serialize_executable.serialize(
        jax.jit(jnp.sin).lower(1.).compile())
    before = len(machine_code._read_back)
    loaded = [serialize_executable.deserialize_and_load(*parts, **DEVICES)
              for _ in range(3)]
    self.assertLen(machine_code._read_back, before + 3)
    del loaded
    gc.unfreeze()  # what was there when the process was forked is looked at
    gc.collect()
    self.assertLen(machine_code._read_back, before)


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
