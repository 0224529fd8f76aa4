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
"""PyTorch/XLA calls JAX with every tensor (pytorch/xla#8794)."""

REPORT = "pytorch/xla#8794"


def call_jax_passes_what_is_used():
  """call_jax for PyTorch/XLA leaves unused tensors out"""
  try:
    from jax.experimental import torch_xla
  except ImportError as e:
    raise AssertionError(
        "no jax.experimental.torch_xla: torch_xla's own call_jax lowers with "
        "keep_unused=True, 3 parameters where 2 suffice") from e
  assert callable(torch_xla.call_jax), "call_jax is not a function"
  return "jax.experimental.torch_xla.call_jax is there"
