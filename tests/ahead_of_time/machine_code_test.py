# SPDX-License-Identifier: Apache-2.0
"""What a stored executable calls and runs on (jax#28908, jax#24982)."""
"""What is kept of executables that were read back."""

import gc

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
