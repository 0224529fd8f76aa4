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
"""A ppermute of those devices alone that reach it together.

XLA's collective permute has no groups of devices. On CPU it waits for all of
the mesh, so where devices along one axis part ways, one over another axis never
ends. In such a loop or branch a ``ppermute`` is marked, by the type of the
names of its axes, which every transformation hands on. What is marked is
lowered for CPU as a gather along those axes, which has groups, and of it each
device takes its source's part, or zeros where it has no source. Elsewhere it is
XLA's own permute, as is all that is not marked.

Cost: on CPU, room for the operands of all devices along the axes.
"""
from __future__ import annotations

from collections.abc import Sequence
import math

from jax._src import core
from jax._src.interpreters import mlir
from jax._src.lax import lax
from jax._src.lax import parallel
from jax._src.lax import slicing
import numpy as np


class Together(tuple):
  """Names of the axes of a ppermute that not all devices of the mesh reach.

  No tuple of the same names equals it: caches must tell them apart.
  """
  __slots__ = ()

  def __eq__(self, other):
    return type(other) is Together and tuple.__eq__(self, other)

  def __ne__(self, other):
    return not self == other

  def __hash__(self):
    return hash((Together, tuple(self)))


def together(x):
  """What a parameter holds, with each ppermute of its jaxprs marked."""
  if isinstance(x, core.ClosedJaxpr):
    jaxpr = together(x.jaxpr)
    return x if jaxpr is x.jaxpr else x.replace(jaxpr=jaxpr)
  if isinstance(x, core.Jaxpr):
    eqns = [_marked(e) for e in x.eqns]
    if all(a is b for a, b in zip(eqns, x.eqns)):
      return x
    return x.replace(eqns=eqns)
  if isinstance(x, tuple):
    parts = [together(part) for part in x]
    if all(a is b for a, b in zip(parts, x)):
      return x
    return type(x)(*parts) if hasattr(x, '_fields') else type(x)(parts)
  return x


def _marked(eqn: core.JaxprEqn) -> core.JaxprEqn:
  params = {name: together(x) for name, x in eqn.params.items()}
  if eqn.primitive is parallel.ppermute_p:
    axes = params['axis_name']
    axes = axes if isinstance(axes, (tuple, list)) else (axes,)
    params['axis_name'] = Together(axes)
  elif all(x is eqn.params[name] for name, x in params.items()):
    return eqn
  return eqn.replace(params=params)


def _lower_for_cpu(ctx, x, /, **params):
  axes = params['axis_name']
  if type(axes) is not Together:
    return parallel._ppermute_lowering(ctx, x, **params)
  gather = mlir.lower_fun(
      lambda x: _from_source(x, tuple(axes), params['perm']),
      multiple_results=False)
  return gather(ctx, x)


mlir.register_lowering(parallel.ppermute_p, _lower_for_cpu, platform='cpu')


def _from_source(x, axes: tuple, perm: Sequence[tuple[int, int]]):
  """What this device's source holds, or zeros."""
  size = math.prod(map(core.get_axis_env().axis_size, axes))
  sources = np.full(size, -1, np.int32)
  for source, target in perm:
    sources[target % size] = source % size
  source = slicing.dynamic_index_in_dim(
      lax.asarray(sources), parallel.axis_index(axes), keepdims=False)
  held = slicing.dynamic_index_in_dim(
      parallel.all_gather(x, axes), lax.max(source, np.int32(0)),
      keepdims=False)
  return lax.select(lax.broadcast(source >= 0, x.shape), held,
                    lax.full_like(held, 0))
