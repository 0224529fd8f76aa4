# SPDX-License-Identifier: Apache-2.0
"""Warns of sums over devices of gradients that JAX has summed already.

In ``shard_map`` with the check on, the gradient with respect to what does not
vary along an axis is complete: the transpose of the cast at its first use is a
sum over devices. Code from the days of ``pmap`` sums or averages it again. The
``psum`` multiplies it by the number of devices, and the ``pmean`` leaves it the
sum, where a mean was meant (netket#2228). Neither is an error: what does not
vary may be summed, as a constant is.

What tells them apart is where the operand comes from. The trace is walked back
from it, through operations that scale, shape or add, and into calls, to a sum
that differentiation has put there: a ``psum_invariant`` over the axis whose
name stack has a ``transpose``. For ``pmean`` the walk goes on from that sum: if
the loss itself was reduced over the axis, the backward pass begins with a cast
along it, the gradient is the mean already, and another mean does no harm.

Limits: a gradient that comes out of a loop or a branch is not recognised, nor
one that met a nonlinear operation, nor any outside of ``jit``, where there is
no trace; of several losses in one trace, one that was reduced excuses means of
the others' gradients. Cost: a look at the type of
each operand of ``psum``; the walk is for those that are traced and don't vary.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
import functools
from typing import Any, NamedTuple
import weakref

from jax._src import config
from jax._src import core
from jax._src.mend import pages
from jax._src.mend import releases
from jax._src.mend import traces
from jax._src.mend import user_warnings
from jax._src import source_info_util
from jax._src import tree_util
from jax._src.interpreters import partial_eval as pe
from jax._src.varying import backward
from jax._src.varying import context
from jax._src.varying import types as vt
from jax._src.varying.contents import jaxprs_in

option = config.enum_state(
    name='jax_shard_map_summed_gradients',
    enum_values=['warn', 'error', 'off'], default='warn',
    help='What to do about a jax.lax.psum or jax.lax.pmean, inside shard_map, '
    'of a gradient that JAX has already summed over the same mesh axis.')

# What is linear in each operand by itself: scaled, shaped, or added.
_LINEAR = frozenset([
    'add', 'add_any', 'broadcast_in_dim', 'concatenate', 'convert_element_type',
    'copy', 'mul', 'neg', 'reshape', 'slice', 'squeeze', 'transpose'])
_FIRST = frozenset(['div', 'reduce_precision'])  # in the first only
_CALLED = frozenset(['jaxpr', 'call_jaxpr', 'fun_jaxpr'])
_LOOPS = frozenset(['scan', 'while', 'cond'])
_NEAR, _MOST = 64, 10_000  # equations to look at for a sum, for a cast

Node = tuple[Any, Callable]  # a value, and what gives the equation behind it
Step = tuple[Any, Sequence[Node], int]  # the equation, operands, which result


_said: set[tuple[str, str]] = set()  # the function and the line
# By trace, the axes over which a loss is known to be reduced: one walk will do.
_averaged: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def look(x: Any, axis_name: Any) -> None:
  """Warns if ``x``, about to be summed, has a gradient that is a sum already.

  Args:
    x: the operand of ``psum``, a tree.
    axis_name: what it is summed over.
  """
  if (type(axis_name) is str and isinstance(x, core.Tracer) and
      axis_name in vt.varying(x.aval)):
    return  # most come by here: in the fewest steps
  if type(x) is int:  # an axis' size
    return
  if not vt.checking() or (
      option.value == 'off' and backward.rule.sums is None):
    return
  axes = axis_name if isinstance(axis_name, (tuple, list)) else (axis_name,)
  for leaf in tree_util.tree_leaves(x):
    if isinstance(leaf, core.Tracer):
      twice = vt.nontrivial(frozenset(
          a for a in axes if isinstance(a, str)) - vt.varying(leaf.aval))
      if twice:
        _look_at(leaf, twice)


def of_mean(psum: Callable) -> Callable:
  """``psum``, as ``pmean`` calls it."""
  return functools.partial(context.run, 'mean', psum)


class Sum(NamedTuple):
  """A call of ``psum`` or ``pmean`` of what doesn't vary.

  Attributes:
    operand: what is summed.
    axes: what it is summed over and doesn't vary over.
    mean: whether it is a mean.
    where: the source line.
  """
  operand: core.Tracer
  axes: vt.Axes
  mean: bool
  where: str

  @property
  def name(self) -> str:
    return 'jax.lax.pmean' if self.mean else 'jax.lax.psum'


def _look_at(x: core.Tracer, axes: vt.Axes) -> None:
  found = Sum(x, axes, context.running.now.mean,
              source_info_util.summarize(source_info_util.current()))
  if backward.rule.sums is None:
    if option.value != 'off':
      look_behind(found)
  else:  # its results and forward rule will say more
    backward.rule.sums.append(found)


def look_behind(s: Sum) -> None:
  """Warns of a sum if what is behind its operand is one of a backward pass."""
  if option.value == 'off':
    return
  node = _staged(s.operand)
  found = None if node is None else _sum_behind(node, s.axes)
  if found is None:
    return
  eqn, (operand, *_), _ = found
  over = s.axes & frozenset(eqn.params['axes'])
  if option.value == 'warn' and (s.name, s.where) in _said:
    return
  if s.mean:
    averaged = _averaged.setdefault(s.operand._trace, set())
    if over <= averaged:
      return
    if _cast_behind(operand, over):
      averaged |= over
      return
  _say(s, over, f'{s.name} over {_names(over)} at {s.where} is of a gradient '
       f'that JAX has already summed over {_names(over)}, in the backward pass '
       f'of {source_info_util.summarize(eqn.source_info)}. ')


def say_of_rule(s: Sum, attached_to: str, refused: bool) -> None:
  """Warns of the sum of a cotangent that a backward rule returns.

  Args:
    s: the sum.
    attached_to: the function and where it is, if that is known.
    refused: whether upstream refuses the program: so it is an error.
  """
  if s.mean:  # of what is the same on all devices
    return
  of = f' attached to {attached_to}' if attached_to else ''
  _say(s, s.axes, f'{s.name} over {_names(s.axes)} at {s.where} is of the '
       f'cotangent that the custom VJP bwd rule{of} was given, which is '
       'complete, and so is what it is to return: JAX has summed it where '
       "the function's result is used. ", refused)


def _names(axes: vt.Axes) -> str:
  return ', '.join(map(repr, vt.ordered(axes)))


def _staged(x: Any) -> Node | None:
  """The value in the innermost trace that records equations."""
  for t in traces.layers(x):
    if isinstance(t, pe.DynamicJaxprTracer):
      if hasattr(t, 'parent'):
        return t, _by_tracer
      frame: Any = t._trace.frame  # 0.6.0
      return frame.tracer_to_var.get(id(t)), _by_variable(frame.eqns)
  return None


def _by_tracer(x: Any) -> Step | None:
  eqn = getattr(x, 'parent', None)
  if eqn is None:
    return None
  n = eqn.outvars.index(x.val) if len(eqn.outvars) > 1 else 0
  return eqn, [(y, _by_tracer) for y in eqn.in_tracers], n


def _by_variable(eqns: Sequence[Any], inputs: Sequence[Any] = (),
                 operands: Sequence[Node] = ()) -> Callable:
  """A function from a variable to its equation, in a jaxpr or beyond it."""
  made_by = {v: eqn for eqn in eqns for v in eqn.outvars}
  beyond = dict(zip(inputs, operands))

  def step_of(v: Any) -> Step | None:
    if type(v) is core.Literal or v is None:
      return None
    if v in beyond:
      outer, step_outside = beyond[v]
      return step_outside(outer)
    eqn = made_by.get(v)
    if eqn is None:
      return None
    return eqn, [(u, step_of) for u in eqn.invars], eqn.outvars.index(v)
  return step_of


def _inside(found: Step) -> Node | None:
  """The result in the jaxpr of a call that the equation is, if it is one."""
  eqn, operands, n = found
  if vt.name_of(eqn.primitive) in _LOOPS or _CALLED.isdisjoint(eqn.params):
    return None
  for inner in jaxprs_in(eqn.params):
    if (len(inner.invars), len(inner.outvars)) == (
        len(operands), len(eqn.outvars)):
      return inner.outvars[n], _by_variable(inner.eqns, inner.invars, operands)
  return None


def _backward(eqn: Any) -> bool:
  return any(type(part) is source_info_util.Transform
             and part.name == 'transpose'
             for part in eqn.source_info.name_stack.stack)


def _over(eqn: Any, axes: vt.Axes) -> bool:
  return bool(axes.intersection(eqn.params.get('axes', ())))


def _steps_behind(
    node: Node, most: int, onward: Callable[[Step], Sequence[Node]]
) -> Iterator[Step]:
  """The steps that lead to a value, each once, ``most`` of them.

  Args:
    node: the value.
    most: the number of steps at which the walk ends.
    onward: the values that a step is followed to.
  """
  todo, seen = [node], set[tuple[int, int]]()
  while todo and len(seen) < most:
    value, step_of = todo.pop()
    found = step_of(value)
    if found is None or (id(found[0]), found[2]) in seen:
      continue
    seen.add((id(found[0]), found[2]))
    yield found
    todo += onward(found)


def _scaled(found: Step) -> Sequence[Node]:
  """The values that the step only scales or shapes."""
  eqn, operands, _ = found
  name = vt.name_of(eqn.primitive)
  if name in _LINEAR:
    return operands
  if name in _FIRST:
    return operands[:1]
  inner = _inside(found)
  return [] if inner is None else [inner]


def _sum_behind(node: Node, axes: vt.Axes) -> Step | None:
  """The sum in a backward pass that a value is, but for its scale and shape."""
  for found in _steps_behind(node, _NEAR, _scaled):
    if vt.name_of(found[0].primitive) == 'psum_invariant' and (
        _over(found[0], axes) and _backward(found[0])):
      return found
  return None


def _cast_behind(node: Node, axes: vt.Axes) -> bool:
  """True if a backward pass casts along the axes on its way to a value."""

  def made_of(found: Step) -> Sequence[Node]:
    inner = _inside(found)
    return found[1] if inner is None else [inner]

  return any(eqn.primitive is core.pvary_p and _over(eqn, axes) and _backward(
      eqn) for eqn, *_ in _steps_behind(node, _MOST, made_of))


def _say(s: Sum, over: vt.Axes, what: str, refused: bool = False) -> None:
  """Warns, once a source line, or refuses."""
  fix = ('To get the mean, divide by `jax.lax.psum(1, axis)`, or take the mean '
         'of the loss over the devices before it is differentiated.'
         if s.mean else f'Leave {s.name} out.')
  does = ('leaves it the sum' if s.mean
          else 'multiplies it by the number of devices')
  cast = releases.varying_cast('w', '...')
  text = (
      f'{what}Inside shard_map the gradient '
      'with respect to a value that does not vary over an axis is complete on '
      f'every device, and {s.name} {does}. {fix} For the gradient of each '
      f"device's own part, differentiate with respect to {cast}.")
  page = pages.see('varying.md#gradients-that-are-summed-twice')
  if refused:
    raise ValueError(text + page)
  if option.value == 'off' or (
      option.value == 'warn' and (s.name, s.where) in _said):
    return
  text += (" The option jax_shard_map_summed_gradients ('warn', 'error', 'off')"
           ' decides what becomes of this.')
  if option.value == 'error':
    raise ValueError(text + page)
  _said.add((s.name, s.where))
  user_warnings.warn(text, user_warnings.SummedGradientWarning)
