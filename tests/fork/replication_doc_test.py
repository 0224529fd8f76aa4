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
"""Runs docs/check_replication.md."""
import doctest

from absl.testing import absltest
from fork.testing import pages
import jax
from jax._src import test_util as jtu
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()


class CheckReplicationDocTest(pages.PageTest):
  page = 'check_replication.md'
  least = 38
  options = doctest.ELLIPSIS


if __name__ == '__main__':
  absltest.main(testLoader=jtu.JaxTestLoader())
