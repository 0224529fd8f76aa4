# SPDX-License-Identifier: Apache-2.0
"""Dataflow of replication types: what an output of a jaxpr depends on.

Two things are known of a value, per mesh axis: whether it *varies*, which is
its type in the rewrite and says how its cotangent is kept (a part on each
device, or one total), and whether it may *differ* between devices, which is
what ``out_specs`` and predicates ask for (see ``reps``). Both are unions, so
the type of a jaxpr's output is

    V(out) = made  |  union over the inputs i of (V(i) less what a reduction
                      over devices removed on the way)

and each mesh axis can be treated by itself: along one axis an output varies
if the jaxpr makes it vary (``axis_index``), or if one of a set of inputs
does. A ``Flow`` holds that set, per axis, as the bits of an integer: bit 0
for "made here", then two bits for each input, for "if it varies" and "if it
may differ". ``summarize`` computes the flows of a jaxpr's outputs in one pass
and remembers them by jaxpr. A loop's fixpoint then iterates on the summary of
its body and never on the body, so typing visits each equation of a program
once, whatever the depth of nesting and the number of iterations (jax#27664).

The same rules, called with flows that say "varies" or "does not" (bit 0 set
or clear), type a primitive whose operands' types are known; ``type_rules``
makes check rules of shard_map out of them in that way. The check asks what
may differ.

Limits: where the type rule of a primitive is known only through shard_map's
table of check rules (a primitive of a library, say), its outputs are taken to
vary with every operand, and along the axes along which the rule makes them
vary when no operand does.
Cost: two bitwise operations on integers of twice as many bits as the jaxpr
has inputs for each operand of each equation, per mesh axis.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import operator
from typing import Any, NamedTuple

from jax._src import core
from jax._src import util
from jax._src.replication.rules import lookup
from jax.experimental import shard_map as sm

MADE = 1  # bit 0 of a mask: varies whatever the inputs do


class Flow(NamedTuple):
  """The dependence of one value's type.

  Attributes:
    masks: per mesh axis, the bits of the inputs it varies with; then, per
      mesh axis again, the bits of the inputs with which it may differ.
    source: index of the input that the value is an untouched copy of, or
      None.
  """
  masks: tuple[int, ...]
  source: int | None = None


# primitive -> rule(axes, ins, **params), which returns a list of flows, or a
# single one that stands for all outputs
flow_rules: dict[core.Primitive, Callable[..., Any]] = {}


def register(*primitives):
  """Decorator that enters a flow rule for the given primitives."""
  def add(rule):
    for p in primitives:
      flow_rules[p] = rule
    return rule
  return add


def constant(axes) -> Flow:
  return Flow((0,) * (2 * len(axes)))


def made_flow(axes, names) -> Flow:
  """The flow of a value that varies along `names` by itself."""
  return Flow(2 * tuple(MADE if a in names else 0 for a in axes))


def union(axes, flows: Sequence[Flow]) -> Flow:
  masks = (0,) * (2 * len(axes))
  for f in flows:
    masks = tuple(map(operator.or_, masks, f.masks))
  return Flow(masks)


def without(axes, flow: Flow, names) -> Flow:
  """The flow of a value that a reduction over `names` made replicated."""
  return Flow(tuple(0 if a in names else m
                    for a, m in zip([*axes, *axes], flow.masks)))


def cast_flow(axes, flow: Flow, names) -> Flow:
  """The flow of a value that was cast to vary along `names`."""
  varies, differs = halves(axes, flow)
  varies = [m | MADE if a in names else m for a, m in zip(axes, varies)]
  return Flow((*varies, *differs))


def gathered_flow(axes, flow: Flow, names) -> Flow:
  """The flow of a value that varies along `names` and is the same there."""
  return cast_flow(axes, without(axes, flow, names), names)


def deciding(axes, flow: Flow) -> Flow:
  """The flow of what a predicate decides: it varies where devices diverge."""
  return Flow(2 * tuple(0 if size == 1 else m for m, size in zip(
      halves(axes, flow)[1], axes.sizes)))


def halves(axes, flow: Flow):
  return flow.masks[:len(axes)], flow.masks[len(axes):]


def infer(axes, prim, ins: Sequence[Flow], params, num_outs: int):
  """Returns the flows of the outputs of one equation."""
  rule = flow_rules.get(prim)
  outs = rule(axes, ins, **params) if rule else _by_check_rule(
      axes, prim, ins, params)
  return [outs] * num_outs if isinstance(outs, Flow) else outs


standard_checks = {sm._standard_check}  # rules of what only computes


def find_rule(prim):
  return lookup.find(sm._check_rules, prim)


def is_standard(prim) -> bool:
  """True if a primitive has no rule but that of what only computes."""
  rule = find_rule(prim)
  return (isinstance(rule, functools.partial)
          and rule.func in standard_checks and prim not in flow_rules)


def _by_check_rule(axes, prim, ins, params) -> Flow:
  rule = find_rule(prim)
  if rule is None:
    sm._rule_missing(prim)
  if is_standard(prim) and ins:
    return union(axes, ins)
  # A rule that someone else registered: ask it what varies out of nothing.
  everywhere = set(axes)
  mesh = Axes(axes, dict(zip(axes, axes.sizes)))
  outs = rule(mesh, *[everywhere] * len(ins), **params)
  outs = outs if isinstance(outs, (list, tuple)) else [outs]
  kept = everywhere.intersection(*[r for r in outs if r is not None])
  return union(axes, [*ins, made_flow(axes, everywhere - kept)])


class Axes(NamedTuple):
  """Stands for the mesh in a rule, most of which read nothing else."""
  axis_names: tuple[Any, ...]
  shape: dict[Any, int]


class Sized(tuple):
  """The names of the mesh axes, with the number of devices along each.

  It equals no tuple of the same names with other sizes: where there is one
  device nobody parts, so a summary for one mesh isn't that for another.
  """
  sizes: tuple[int, ...]

  def __new__(cls, mesh):
    self = super().__new__(cls, mesh.axis_names)
    self.sizes = tuple([mesh.shape[a] for a in self])
    return self

  def __eq__(self, other):
    return (type(other) is Sized and self.sizes == other.sizes
            and tuple.__eq__(self, other))

  def __ne__(self, other):
    return not self == other

  def __hash__(self):
    return hash((self.sizes, tuple(self)))


@util.weakref_lru_cache
def summarize(jaxpr: core.Jaxpr, axes: Sized) -> list[Flow]:
  """Returns the flows of the outputs of `jaxpr` over the mesh axes `axes`."""
  n = len(axes)
  env = {v: Flow((2 << 2 * i,) * n + (4 << 2 * i,) * n, i)
         for i, v in enumerate(jaxpr.invars)}
  def read(x):  # two variables or literals never share an object
    if isinstance(x, core.Var) and x in env:
      return env[x]
    return constant(axes)

  for e in jaxpr.eqns:
    outs = infer(axes, e.primitive, [read(x) for x in e.invars], e.params,
                 len(e.outvars))
    env.update((v, Flow(*out)) for v, out in util.safe_zip(e.outvars, outs))
  return [read(x) for x in jaxpr.outvars]


def apply(summary: Sequence[Flow], ins: Sequence[Flow]) -> list[Flow]:
  """Returns the output flows of a summarized jaxpr on operands `ins`."""
  return [Flow(tuple(_gather(m, ins, k) for k, m in enumerate(out.masks)),
               None if out.source is None else ins[out.source].source)
          for out in summary]


def _gather(mask: int, ins: Sequence[Flow], k: int) -> int:
  acc, mask = mask & MADE, mask >> 1
  while mask:
    low = mask & -mask
    i, differs = divmod(low.bit_length() - 1, 2)
    masks = ins[i].masks
    n = len(masks) // 2
    acc |= masks[k % n + n * differs]
    mask ^= low
  return acc


def call(axes, jaxpr: core.Jaxpr, ins: Sequence[Flow]) -> list[Flow]:
  return apply(summarize(jaxpr, axes), ins)
