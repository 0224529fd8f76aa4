# SPDX-License-Identifier: Apache-2.0
"""The names under which dictionaries without strings for keys are stored."""

import jax
from jax import export
from jax._src import config
from jax._src import test_util as jtu
from jax._src.ahead_of_time import dict_keys
from jax._src.export import _export
import numpy as np

config.parse_flags_with_absl()

X = np.arange(3, dtype=np.float32)


class DictNamesTest(jtu.JaxTestCase):

  def stored(self):
    exported = export.export(jax.jit(lambda d: {7: d[1] + d[2]}))({1: X, 2: X})
    return exported.serialize()

  def test_the_name_says_what_it_is(self):
    data = self.stored()
    self.assertIn(b'dict with keys other than strings', data)
    self.assertNotIn(b'jax-mend', data)

  def test_what_was_stored_under_an_earlier_name_is_read(self):
    self.stored()  # the first use imports what registers
    registry = _export.serialization_registry
    name, write = registry[dict_keys.KeyedDict]
    earlier = f'{name} (jax-mend)'
    registry[dict_keys.KeyedDict] = (earlier, write)
    try:
      data = self.stored()
    finally:
      registry[dict_keys.KeyedDict] = (name, write)
    self.assertIn(earlier.encode(), data)
    loaded = export.deserialize(data)
    self.assertAllClose(loaded.call({1: X, 2: X}), {7: X + X})
