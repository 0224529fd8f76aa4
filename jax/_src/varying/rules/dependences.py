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
"""The operands that a result is a function of, and the axes that count of each.

Operations of ``jax.lax``, of linear algebra and of random keys are functions of
all of their operands. What a gather or reduction over devices returns is the
same along the axes that it names: there, which device an operand is on doesn't
count. A jitted function's result is walked back through its jaxpr, a branch's
through each branch and the index, a loop's carry through the carries that it is
made of, and the predicate. What a linear solve returns is a function of all
that it is given.

Limits: a scatter is a function of unknown things, since its sums may come out
in another order on another device; so is whatever has an effect.

Cost: a visit of each equation that a result is computed by, once and again for
an axis that turns out to count; what is found of a jaxpr's output is kept.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
import functools
from typing import Any

from jax._src import core
from jax._src.util import weakref_lru_cache
from jax._src.varying import contents
from jax._src.varying import flow
from jax._src.varying import types as vt
from jax._src.varying.rules import calls
from jax._src.varying.types import Axes, NO_AXES

# By operand, the axes that don't count of it; None if others matter, too.
Dependences = dict[int, Axes]

_OVER_DEVICES = frozenset([
    'psum', 'psum_invariant', 'pmax', 'pmin', 'all_gather',
    'all_gather_invariant'])
_ELSEWHERE = frozenset([  # functions, too, in modules that hold others
    'stop_gradient', 'cumsum', 'cumprod', 'cummax', 'cummin', 'cumlogsumexp',
    'platform_index', 'random_seed', 'random_split', 'random_fold_in',
    'random_bits', 'random_wrap', 'random_unwrap', 'random_clone',
    'threefry2x32', 'iota_2x32_shape'])
_OTHERWISE = frozenset([  # in the modules of _operations, and not functions
    'rng_uniform', 'infeed', 'outfeed', 'after_all', 'create_token', 'empty',
    'empty2'])


@functools.cache
def _operations() -> frozenset[core.Primitive]:
  """The operations of JAX that are functions of their operands."""
  from jax._src.lax import convolution, fft, lax, linalg, slicing, special
  from jax._src.lax import windowed_reductions
  found = [p for module in (convolution, fft, lax, linalg, slicing, special,
                            windowed_reductions)
           for p in vars(module).values() if isinstance(p, core.Primitive)]
  return frozenset(p for p in found if p.name not in _OTHERWISE
                   and not p.name.startswith('scatter'))


def of_result(eqn: Any, n: int, count: int) -> Dependences | None:
  """The operands that result ``n`` of an equation is a function of.

  Args:
    eqn: an equation, or what was bound as one.
    n: the number of the result.
    count: of the operands.

  Returns:
    By operand, the axes that don't count of it; None if it isn't known.
  """
  prim, params = eqn.primitive, eqn.params
  if not all(isinstance(e, core.NamedAxisEffect) for e in eqn.effects):
    return None
  if prim is core.pvary_p:
    return {n: NO_AXES}
  name = vt.name_of(prim)
  if prim in _operations() or name in _ELSEWHERE:
    return dict.fromkeys(range(count), NO_AXES)
  if name in _OVER_DEVICES:
    if params.get('axis_index_groups') is not None:
      return None
    each = (n,) if count == len(eqn.outvars) else range(count)
    return dict.fromkeys(each, contents.named_axes(eqn))
  if name == 'agreed':
    return {k: NO_AXES.union(less) for k, less in enumerate(params['less'], 1)}
  if name in _INSIDE:
    return _INSIDE[name](params, n, count)
  if flow.rules.get(name) is calls.call:
    return _of_call(params, n, count)
  return None


def _walk(start: Iterable[tuple[Any, Axes]],
          step: Callable[[Any], Iterable[tuple[Any, Axes]] | None]
          ) -> dict[Any, Axes] | None:
  """All that a result is a function of, directly or not.

  Args:
    start: what it is, with the axes that don't count.
    step: the same of anything that is met; None if it isn't known.

  Returns:
    What was met, with the axes that don't count of it on any way to it.
  """
  met: dict[Any, Axes] = {}
  todo = list(start)
  while todo:
    node, less = todo.pop()
    if node in met:
      less = less & met[node]
      if less == met[node]:
        continue
    met[node] = less
    found = step(node)
    if found is None:
      return None
    todo += ((n, less | axes) for n, axes in found)
  return met


@weakref_lru_cache
def _steps(jaxpr: core.Jaxpr) -> Callable[[core.Var], list | None]:
  """Gives what a variable is a function of by its equation, kept for each."""
  makers = {v: (eqn, n) for eqn in jaxpr.eqns
            for n, v in enumerate(eqn.outvars)}
  inputs = frozenset(jaxpr.invars)

  @functools.cache
  def step(v):
    if v in inputs:
      return []
    if v not in makers:  # a constant of the jaxpr
      return None
    eqn, n = makers[v]
    found = of_result(eqn, n, len(eqn.invars))
    return None if found is None else [
        (eqn.invars[k], less) for k, less in found.items()
        if type(eqn.invars[k]) is not core.Literal]
  return step


@weakref_lru_cache
def _of_output(jaxpr: core.Jaxpr, n: int) -> Dependences | None:
  """The inputs that output ``n`` of a jaxpr is a function of."""
  out = jaxpr.outvars[n]
  if type(out) is core.Literal:
    return {}
  met = _walk([(out, NO_AXES)], _steps(jaxpr))
  return met and {
      k: met[v] for k, v in enumerate(jaxpr.invars) if v in met}


def _of_call(params: dict[str, Any], n: int, count: int) -> Dependences | None:
  jaxpr = vt.open_jaxpr(params[flow.callee(params)])
  return _of_output(jaxpr, n) if len(jaxpr.invars) == count else None


def _of_branches(params: dict[str, Any], n: int, _) -> Dependences | None:
  joined: Dependences = {0: NO_AXES}  # the index
  for branch in params['branches']:
    found = _of_output(vt.open_jaxpr(branch), n)
    if found is None:
      return None
    for k, less in found.items():
      joined[k + 1] = joined.get(k + 1, less) & less
  return joined


def _of_scan(params: dict[str, Any], n: int, _) -> Dependences | None:
  body = vt.open_jaxpr(params['jaxpr'])
  nc, nk = vt.scan_counts(params)
  if n < nk:
    start: Dependences | None = {nc + n: NO_AXES}
  else:
    start = _of_output(body, n)
  return start and _walk(start.items(), lambda k: _items(
      _of_output(body, k - nc) if nc <= k < nc + nk else {}))


def _items(found: Dependences | None) -> Iterable[tuple[int, Axes]] | None:
  return None if found is None else found.items()


def _of_while(params: dict[str, Any], n: int, _) -> Dependences | None:
  cond, body = (vt.open_jaxpr(params[f'{name}_jaxpr'])
                for name in ('cond', 'body'))
  nc, nb = params['cond_nconsts'], params['body_nconsts']
  first = nc + nb
  stop = _of_output(cond, 0)
  if stop is None:
    return None

  def step(k):
    found = _of_output(body, k - first) if k >= first else {}
    return found if found is None else [
        (nc + place, less) for place, less in found.items()]

  return _walk([(first + n, NO_AXES), *(
      (k if k < nc else k + nb, less) for k, less in stop.items())], step)


def _of_solve(params: dict[str, Any], n: int, count: int) -> Dependences | None:
  solve = vt.open_jaxpr(params['jaxprs'].solve)
  known = _of_output(solve, n) is not None
  return dict.fromkeys(range(count), NO_AXES) if known else None


_INSIDE = {'cond': _of_branches, 'scan': _of_scan, 'while': _of_while,
           'custom_linear_solve': _of_solve}
LOOPS = frozenset(['scan', 'while'])
