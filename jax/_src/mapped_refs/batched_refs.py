# SPDX-License-Identifier: Apache-2.0
"""Loops under vmap over refs whose batch axis isn't the first.

A loop's rule has its batch in front: ``scan``'s moves each constant's batch
axis there, which a ref has no view for (an error, up to 0.11); that of a
``while_loop`` leaves refs where they are, and where the predicate is batched
the content is later chosen by it along the first axis: the wrong one, and a
wrong value if its size fits.

Such a loop is given a new ref that holds the content with its batch axis where
the rule has it, and what it holds in the end is written back. A ref that isn't
batched, read in a ``while_loop`` whose predicate is, has a copy an example; one
that is written there is refused, as each example has other numbers of trips.

Cost: a copy of the content before and after the loop, which a compiled program
often goes without; a loop whose refs have their batch in front has none.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
from typing import Any

from jax._src.interpreters import batching
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import pages
from jax._src.mend import releases
from jax._src.mend import traces


def scan_of_refs(rule: Callable[..., Any]) -> Callable[..., Any]:
  """Gives scan's batching rule its refs with their batch axes in its place.

  Args:
    rule: takes the batch, operands, their batch axes and scan's parameters.

  Returns:
    The same, for refs with any batch axis.
  """
  @functools.wraps(rule)
  def batch_scan(axis_data, args, dims, **params):
    outside = anatomy.scan(params).own.stop  # what is scanned over comes next
    wanted = [0 if n < outside else 1 for n in range(len(args))]
    if not _misplaced(args, dims, wanted):
      return rule(axis_data, args, dims, **params)
    return _with_copies(rule, axis_data, args, dims, wanted, params)
  return batch_scan


def of_while(axis_data, args: Sequence[Any], dims: Sequence[int | None],
             batched_predicate: bool, cond_jaxpr, **params) -> Any:
  """A batched while_loop over refs that its predicate would choose wrongly.

  Args:
    axis_data: the batch.
    args: the loop's operands: constants of the predicate and of the body, then
      the carry.
    dims: their batch axes.
    batched_predicate: whether the predicate is batched.
    cond_jaxpr: the predicate; what a batch around it made it return is an
      array, by whose axes the content is chosen as well.
    **params: the loop's other parameters.

  Returns:
    None if there is no such ref, else the results and their batch axes.

  Raises:
    ValueError: a ref without batch is written, and the predicate is batched.
  """
  rank = len(cond_jaxpr.out_avals[0].shape)
  if not batched_predicate and not rank:
    return None
  loop = anatomy.while_loop(dict(params, cond_jaxpr=cond_jaxpr))
  body = range(loop.tests, loop.first)
  wanted = [0 if batched_predicate else
            (rank if dim is None else max(dim, rank)) for dim in dims]
  written = {n + body.start for n in jaxprs.written(loop.body)}
  shared = [n for n in body if batched_predicate and dims[n] is None
            and traces.is_ref(args[n])]
  if written.intersection(shared):
    aval = traces.typeof(args[min(written.intersection(shared))])
    raise ValueError(
        'jax.lax.while_loop under jax.vmap writes to a ref that is not '
        'batched, in a loop whose predicate is. Expected: a ref with a batch '
        f'axis, as each example has its own number of trips. Got: {aval}. '
        'Pass the ref as an argument of the function that is mapped, with its '
        'axis in in_axes, or make it inside.' +
        pages.see('varying.md#refs'))
  if not shared and not _misplaced(args, dims, wanted):
    return None
  from jax._src.lax.control_flow import loops  # it calls this
  return _with_copies(loops._while_loop_batching_rule, axis_data, args, dims,
                      wanted, dict(params, cond_jaxpr=cond_jaxpr), shared)


def _misplaced(args, dims, wanted) -> bool:
  """True if a ref's batch axis isn't the one that is wanted."""
  return any(dim is not None and dim != to and traces.is_ref(x)
             for x, dim, to in zip(args, dims, wanted))


def _with_copies(rule, axis_data, args, dims, wanted, params, shared=()):
  """Applies a batching rule to copies of the refs, and writes them back.

  Args:
    rule: the rule.
    axis_data: the batch.
    args: the operands.
    dims: their batch axes.
    wanted: those that refs are to have.
    params: the equation's parameters.
    shared: the positions of refs without batch that are only read, and are to
      have one.

  Returns:
    What the rule does.
  """
  args, dims, copied = list(args), list(dims), []
  copies: dict[int, Any] = {}  # a loop's predicate and body can share a ref
  for n, (ref, dim, to) in enumerate(zip(args, dims, wanted)):
    if n in shared:
      content = batching.broadcast(ref[...], axis_data.size, to,
                                   axis_data.explicit_mesh_axis)
    elif dim is not None and dim != to and traces.is_ref(ref):
      content = batching.moveaxis(ref[...], dim, to)
      if id(ref) not in copies:
        copied.append((n, ref, dim, to))
    else:
      continue
    args[n] = copies.setdefault(id(ref), _ref_like(ref, content))
    dims[n] = to
  outs = rule(axis_data, tuple(args), tuple(dims), **params)
  for n, ref, dim, to in copied:
    ref[...] = batching.moveaxis(args[n][...], to, dim)
  return outs


def _ref_like(ref, content):
  """A new ref, of the kind and in the memory of another one."""
  aval = traces.typeof(ref)
  kept = {name: getattr(aval, name, None) for name in ('memory_space', 'kind')
          if name in getattr(aval, '__slots__', ())}
  return releases.make_ref()(
      content, **{k: v for k, v in kept.items() if v is not None})
