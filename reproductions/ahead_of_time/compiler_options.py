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
"""CompileOptions where a dictionary is expected."""
import jax
import jax.numpy as jnp

REPORT = "jax#24869"


def as_an_object():
  """compile(compiler_options=CompileOptions())"""
  from jax._src.lib import xla_client
  lowered = jax.jit(jnp.sin).lower(1.)
  try:
    lowered.compile(compiler_options=xla_client.CompileOptions())
  except TypeError as e:
    return str(e)[:60]
  except AttributeError as e:
    raise AssertionError(str(e)) from e
