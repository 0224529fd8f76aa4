# SPDX-License-Identifier: Apache-2.0
"""The error about outputs that can't be shown to be replicated."""
import re

import jax
import numpy as np

REPORT = "jax#40823"


def error_says_where_an_output_became_varying():
  """the error about replicated out_specs names the line where it went wrong"""
  from jax.sharding import Mesh, PartitionSpec as P
  try:
    from jax import shard_map
  except ImportError:
    from jax.experimental.shard_map import shard_map

  def f(x):
    n = jax.lax.axis_index("x")
    return x.sum() + n

  mesh = Mesh(np.array(jax.devices()[:2]), ("x",))
  g = jax.jit(shard_map(f, mesh=mesh, in_specs=P(), out_specs=P()))
  try:
    g(np.arange(4))
  except ValueError as e:
    found = re.search(r"varies over .* because of axis_index at ", str(e))
    assert found, "the message names no origin"
    return "axis_index is named, with its line"
  raise AssertionError("accepted")
