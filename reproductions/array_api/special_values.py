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
"""Whether floor division and remainder have the standard's special values."""
import jax.numpy as jnp
import numpy as np

REPORT = "jax#27606"


def _is(got, want):
  assert np.array_equal(got, want) and np.signbit(got) == np.signbit(want), got
  return str(got)


def remainder():
  """remainder(-0., 1.) is +0, as in NumPy"""
  return _is(np.asarray(jnp.remainder(-0., 1.)), 0.)


def floor_divide():
  """floor_divide(-0., 1.) is -0, as in NumPy"""
  return _is(np.asarray(jnp.floor_divide(-0., 1.)), -0.)


def infinity():
  """floor_divide(inf, 2.) is inf"""
  return _is(np.asarray(jnp.floor_divide(jnp.inf, 2.)), np.inf)
