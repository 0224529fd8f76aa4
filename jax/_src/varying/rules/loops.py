# SPDX-License-Identifier: Apache-2.0
"""Loops in a shard_map whose carries become varying, or whose bounds vary.

``while_loop``: the least sets C with C_i containing V(init_i), V(output i of
the body, given C) and, for every carry that the body may change, V(predicate,
given C): devices that leave a loop at different trips leave with different
values. A carry that the body returns untouched doesn't take the predicate's
axes, and an axis along which there is one device counts for none. ``scan``: the
same without a predicate. The initial values are cast to C outside the loop, and
the jaxprs are re-typed, once.
"""
from __future__ import annotations

from collections.abc import Callable
import operator
import threading
from typing import Any
import weakref

from jax._src import config
from jax._src import core
from jax._src.mend import abstract
from jax._src.mend import anatomy
from jax._src.mend import jaxprs
from jax._src.mend import user_warnings
from jax._src import tree_util
from jax._src.varying import bind as binding
from jax._src.varying import casts
from jax._src.varying import context
from jax._src.varying import divergence
from jax._src.varying import flow
from jax._src.varying import outdated
from jax._src.varying import retrace
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying.contents import divergence_is_harmless
from jax._src.varying.rules import agreeing_predicates
from jax._src.varying.rules import permute
from jax._src.varying.types import Axes


def _grow(carry: list[Axes], new, body: flow.Region,
          start: int) -> list[Axes]:
  """The carry's sets joined with ``new``; only arrays have varying axes."""
  return [c if c is n or n <= c or not isinstance(v.aval, core.ShapedArray)
          else c | n for c, n, v in zip(carry, new, body.invars[start:])]


def while_rule(site: flow.Site, ins: list[Axes]) -> None:
  loop = anatomy.while_loop(site.eqn.params)
  nc, nb = loop.tests, loop.consts
  cond, body = site.regions(loop.predicate, loop.body)
  cond_consts, body_consts, carry, _ = loop.split(ins)
  if site.operands:
    carry = _grow(carry, site.operands[nc + nb:], body, nb)

  predicate, = cond.jaxpr.outvars
  differs = lambda: cond.differs(predicate)
  while True:
    axes, = cond.run(cond_consts + carry)
    pred = site.diverging(axes, predicate, differs)
    if pred and body.refs and flow.refs_widen():
      for n in vt.written(body.jaxpr):
        body_consts[n] |= pred
    outs = body.run(body_consts + carry)
    if pred:
      outs = [o if n == source else o | pred for n, (o, source) in enumerate(
          zip(outs, abstract.inputs_of_results(body.jaxpr)), nb)]
    grown = _grow(carry, outs, body, nb)
    if grown == carry:
      break
    carry = grown
    site.grown = site.grown or cond_consts + body_consts + carry
  if pred:
    cond, body = flow.diverges(site, pred)
  cond_consts = flow.record_ref_writes(site, cond, cond_consts + carry)[:nc]
  body_consts = flow.record_ref_writes(site, body, body_consts + carry, nc)[:nb]
  site.operands, site.outs = cond_consts + body_consts + carry, carry


def scan_rule(site: flow.Site, ins: list[Axes]) -> None:
  loop = anatomy.scan(site.eqn.params)
  nc, nk = loop.consts, loop.carries
  body, = site.regions(loop.body)
  _, consts, carry, xs = loop.split(ins)
  if site.operands:
    carry = _grow(carry, site.operands[nc:nc + nk], body, nc)
  while True:
    results = body.run(consts + carry + xs)
    outs, ys = results[:nk], results[nk:]
    grown = _grow(carry, outs, body, nc)
    if grown == carry:
      break
    carry = grown
    site.grown = site.grown or consts + carry + xs
  site.operands = flow.record_ref_writes(site, body, consts + carry + xs)
  site.outs = carry + ys


class _While(binding.Binding):
  """The binding of ``while``: its carry at the fixpoint of ``while_rule``."""

  @staticmethod
  def carries(params) -> tuple[int, int]:
    loop = anatomy.while_loop(params)
    return loop.first, loop.first + loop.carries

  @staticmethod
  def is_called(params) -> bool:
    return anatomy.while_loop(params).body is _state.body()

  @staticmethod
  def is_solved(params, avals, refs: bool = False, trace=None) -> bool:
    """True if no carry grows, and none differs where devices diverge."""
    loop = anatomy.while_loop(params)
    cond, body, nc = loop.predicate, loop.body, loop.tests
    invars, outs = body.invars, body.outvars
    if (vt.has_refs(cond) or not refs and vt.has_refs(body)
        or nc and not binding.same_axes(cond.invars[:nc], avals)
        or not binding.same_axes(invars, avals[nc:])):
      return False
    carry = invars[loop.consts:]
    if not binding.same_axes(carry, [v.aval for v in outs]):
      return False
    pred = vt.nontrivial(vt.varying(cond.outvars[0].aval))
    if not pred:
      return True
    if refs:
      return False
    for v, out in zip(carry, outs):
      if (v is not out and isinstance(v.aval, core.ShapedArray)
          and not pred <= vt.axes_of_array(v.aval)):
        return False
    return (divergence_is_harmless(cond, pred)
            and divergence_is_harmless(body, pred))

  @staticmethod
  def refine_predicate(args, params, avals):
    return args, agreeing_predicates.refine_loop(args, params), avals

  @staticmethod
  def marked(mark, mark_params, args, params):
    closed = params['cond_jaxpr']
    return args, {**params, 'cond_jaxpr': vt.reclose(
        closed, jaxprs.with_output(vt.open_jaxpr(closed), mark, mark_params))}

  @staticmethod
  def binders(params) -> list[core.Var]:
    loop = anatomy.while_loop(params)
    return [*loop.predicate.invars[:loop.tests], *loop.body.invars]

  @staticmethod
  def typed_params(site: flow.Site) -> dict:
    cond, body = site.kids
    params = site.eqn.params
    return permute.marked(site, dict(
        cond_jaxpr=vt.reclose(
            params['cond_jaxpr'], agreeing_predicates.refine_output(
                retype.rebuild(cond), site.agreeing)),
        body_jaxpr=vt.reclose(params['body_jaxpr'],
                              retype.rebuild(body, site.outs))))


class _Scan(binding.Binding):
  """The binding of ``scan``: its carry at the fixpoint of ``scan_rule``."""

  @staticmethod
  def carries(params) -> tuple[int, int]:
    own = anatomy.scan(params).own
    return own.start, own.stop

  @staticmethod
  def is_called(params) -> bool:
    return anatomy.scan(params).body is _state.body()

  @staticmethod
  def is_solved(params, avals, refs: bool = False, trace=None) -> bool:
    """True if no carry grows."""
    loop = anatomy.scan(params)
    body, first = loop.body, loop.consts
    if not refs and vt.has_refs(body):
      return False
    if not binding.same_axes(invars := body.invars, avals):
      return False
    return binding.same_axes(
        invars[first:first + loop.carries], [v.aval for v in body.outvars])

  @staticmethod
  def binders(params) -> list[core.Var]:
    return anatomy.scan(params).body.invars

  @staticmethod
  def typed_params(site: flow.Site) -> dict:
    body, = site.kids
    return dict(jaxpr=vt.reclose(site.eqn.params['jaxpr'],
                                 retype.rebuild(body, site.outs)))


FLOW_RULES = {'while': while_rule, 'scan': scan_rule}
BUILDERS = {
    'while': lambda b, site: retype.copy(b, site, **_While.typed_params(site)),
    'scan': lambda b, site: retype.copy(b, site, **_Scan.typed_params(site))}


def bind_at_least_types(scan_p: core.Primitive, while_p: core.Primitive):
  """Has loops bound at the least types that hold for them, by whomever."""
  _Scan(scan_p).install()
  _While(while_p).install()


class _LoopState(threading.local):
  """The outermost loop that is being traced.

  Attributes:
    own: whether the next call of a loop is ``retracing``'s own.
    inside: whether there is one.
    nests: whether there is a loop in it.
    body: a reference to the body of the loop that was called last, as its
      caller has it traced.
    careful: whether the loops in it are to trace again by themselves. They do
      only after a first attempt was of no use: what waits for a refusal is a
      frame on the stack, and a nest must be possible as deep as ever.
  """
  own = inside = nests = careful = False
  body: Callable[[], Any] = staticmethod(lambda: None)


_state = _LoopState()


def called(body: Any) -> None:
  """Notes the body of a loop that is about to be bound for its caller.

  No rule of a transformation comes here, so the loop can be traced again, even
  if it stands in the backward rule of a ``custom_vjp``.
  """
  _state.body = weakref.ref(vt.open_jaxpr(body))


def retraces() -> bool:
  """True if the loop that has been called must go through ``retracing``.

  Outside of shard_map nothing is traced again, and no frame added to the stack.
  """
  if _state.own:
    _state.own = False
    return False
  if _state.inside and not _state.careful:
    _state.nests = True
    return False
  return vt.checking()


def retracing(loop, init: int, *args):
  """Calls a loop, and again where its carry must be promoted beforehand.

  Args:
    loop: ``scan`` or ``while_loop``, which asks ``retraces`` first of all.
    init: the position of the carry's initial value.
    *args: the loop's arguments.

  Returns:
    What the loop returns.
  """
  outermost = not _state.inside
  _state.own = _state.inside = True
  if outermost:
    _state.nests = False
  try:
    try:
      return loop(*args)
    except _REFUSALS as e:
      if not _state.nests or _state.careful:
        # One that jit has kept is seen, and may grow, at other types only.
        _state.careful = True
        return _again(e, loop, init, args)
      diverges = isinstance(e, retrace.DivergentDerivativeError)
    _state.own = _state.careful = True
    try:
      if not diverges:  # the trace that has been made is the same
        return loop(*args)
      with context.replacing('derivatives_at_once', True):
        return loop(*args)
    except _REFUSALS as e:
      return _again(e, loop, init, args)
  finally:
    if outermost:
      _state.own = _state.inside = _state.careful = False


_GREW = (retrace.CarryGrew, retrace.RefGrew)
_REFUSALS = (*_GREW, retrace.DivergentDerivativeError)


def _again(refusal, loop, init: int, args):
  """The loop, traced again with its initial value promoted."""
  leaves, tree = tree_util.tree_flatten(args[init])

  def call(leaves):
    value = tree_util.tree_unflatten(tree, leaves)
    return loop(*args[:init], value, *args[init + 1:])

  def promoted(refusal, leaves):
    axes = refusal.axes_of(leaves, core.trace_ctx.trace)
    axes = axes or _grown(leaves, call)
    new = list(map(vt.cast, leaves, axes or ()))
    if not axes or all(map(operator.is_, new, leaves)):
      raise TypeError(str(refusal)) from refusal
    return new

  def trace(leaves, refusal=None):
    while True:  # a carry and a ref, or one carry after the other
      if isinstance(refusal, retrace.RefGrew):
        return refusal.retry(leaves, trace)
      if refusal is not None:
        leaves = promoted(refusal, leaves)
      try:
        with casts.tracing_again():
          return call(leaves)
      except _GREW as e:
        refusal = e

  if isinstance(refusal, _GREW):
    return trace(leaves, refusal)
  axes = _grown(leaves, call)
  if not axes:
    raise refusal
  if not refusal.sure and _grow_by_predicates(leaves, call, axes):
    # If it agrees, the sum is right: that is known where this loop is used.
    with context.replacing('derivatives_at_once', False):
      return call(leaves)
  out = refusal.retry(leaves, trace, axes)
  if refusal.sure and _grow_by_predicates(leaves, call, axes):
    _warn(refusal)
  return out


def _grown(leaves: list, call) -> list[Axes] | None:
  """The axes that a loop's initial value comes to vary over, by leaf.

  That is seen in a trace of its own, where each leaf is another value, and
  where derivatives are let pass that are summed where devices diverge.

  Args:
    leaves: the initial value's.
    call: of other leaves, the loop.

  Returns:
    The axes by leaf; None if that can't be seen.
  """
  from jax._src import api  # imports loops itself
  inside: list = []

  def run(*values):
    inside[:] = list(values), core.trace_ctx.trace
    _state.own = True
    return call(inside[0])

  try:
    with divergence.allow(True):
      closed = api.make_jaxpr(run)(*leaves)
  except retrace.CarryGrew as e:
    return e.axes_of(*inside)
  except Exception:  # pylint: disable=broad-except
    return None  # the refusal that led here says more
  return [vt.varying(a) for a in closed.out_avals[:len(leaves)]]


def _grow_by_predicates(leaves: list, call, axes) -> bool:
  """True if a carry varies for no other reason than a predicate.

  JAX takes the predicate to agree on all devices, and sums the gradient by the
  carry. If it does agree, that is what the program means.
  """
  with vt.predicates_agreeing(), config.enable_checks(False):
    otherwise = _grown(leaves, call)  # None where JAX refuses it as well
  return otherwise is not None and any(
      a != o and outdated.differentiable(vt.typeof(x))
      for x, a, o in zip(leaves, axes, otherwise))


def _warn(refusal: retrace.DivergentDerivativeError) -> None:
  where = str(refusal).partition('. Devices')[0]
  user_warnings.warn(
      f'{where}. It comes from differentiating by a carry, and each device '
      'does so for itself there, as if the carry had been cast with '
      "jax.lax.pcast(..., to='varying') (jax.lax.pvary) before the loop. If "
      'the predicate is the same on all devices, say so, for example with '
      f'jax.lax.pmax(predicate, {vt.ordered(refusal.axes)}): the gradient is '
      'summed over them then.', user_warnings.DivergentLoopWarning)
