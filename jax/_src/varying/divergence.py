# SPDX-License-Identifier: Apache-2.0
"""Refuses collectives that only some of their devices reach.

Where a loop's predicate or a branch's index varies over a mesh axis, devices
along that axis diverge, if there are several (``types.nontrivial``). A
collective over that axis inside then waits for devices that never come, or
pairs with another one's buffer. Whether there is one is asked of such a loop or
branch, and only there: programs whose predicates don't vary pay nothing.
Collectives over other axes are fine; for ppermute, which on CPU waits for every
device of the mesh, ``rules.permute`` sees to that.

Not seen: collectives inside a kernel or a foreign call, and those of a
custom_vjp's backward rule until it is differentiated.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax._src import config
from jax._src import core
from jax._src.mend import pages
from jax._src.mend import source_lines
from jax._src.mend import trace_key
from jax._src import source_info_util
from jax._src.varying import flow
from jax._src.varying import retrace
from jax._src.varying import types as vt
from jax._src.varying.contents import divergence_is_harmless, named_axes

allow = trace_key.option(
    config.bool_state, 'jax_allow_divergent_collectives', False,
    'Inside shard_map with the check on, admit collectives in loops and '
    'branches whose predicate is typed as varying over the same mesh axis. '
    'They deadlock or mix values unless the predicate is in fact the same on '
    'all devices along that axis.')


def refusal(message: str) -> ValueError:
  """The error for a collective that only some of its devices may reach."""
  error: Any = ValueError(message)
  error.diverges = True
  return error


def is_refusal(error: Exception) -> bool:
  """True of such an error, and of one for a derivative's sum."""
  return (isinstance(error, retrace.DivergentDerivativeError)
          or getattr(error, 'diverges', False))


def check(jaxprs, predicate: vt.Axes, name: str,
          where: Callable[[], str]) -> None:
  """Raises if a collective in ``jaxprs`` is over an axis of ``predicate``.

  Args:
    jaxprs: what runs on some devices and not on others.
    predicate: the axes that the choice varies over.
    name: the loop or branch, as the user calls it.
    where: finds the source line of the predicate; empty if none is known.

  Raises:
    ValueError: if there is such a collective, unless the option
      ``jax_allow_divergent_collectives`` is set.
  """
  if allow.value:
    return
  for jaxpr in jaxprs:
    if divergence_is_harmless(jaxpr, predicate):
      continue
    for eqn, derived in retrace.equations(jaxpr):
      axes = named_axes(eqn) & predicate
      if axes:
        message = _message(eqn, derived, axes, name, where())
        if derived:
          raise retrace.DivergentDerivativeError(message, axes)
        raise refusal(message)


def _message(eqn, derived, axes, name, where) -> str:
  where = where and f', at {where},'
  axis = ' and '.join(map(repr, vt.ordered(axes)))
  collective = eqn.primitive.name.removesuffix('_invariant')
  message = (
      f'{collective} over mesh axis {axis} at '
      f'{source_info_util.summarize(eqn.source_info)} is inside a {name} '
      f'whose predicate{where} varies over {axis}. Devices '
      f'along {axis} may not reach the collective together, which deadlocks or '
      'mixes their values.\nMake the predicate the same on all, for example '
      f'with jax.lax.pmax(predicate, {axis}) or jax.lax.psum, or move the '
      f'collective out of the {name}.')
  if derived:
    message += (
        ' This one comes from differentiating inside: the gradient of a value '
        f'that is the same along {axis} is summed over it. Cast that value '
        "outside with jax.lax.pcast(..., to='varying'), or jax.lax.pvary on "
        "older releases, and sum its gradient after.")
  return message + (
      '\nIf you know that the predicate agrees, set the option '
      'jax_allow_divergent_collectives to True.' +
      pages.see('varying_errors.md#divergent-collectives'))


_NAMES = {'while': 'lax.while_loop', 'cond': 'lax.cond or lax.switch'}


def _line_of_predicate(cond: core.Jaxpr) -> str:
  """The user's line that computes a loop's predicate, if there is one.

  A function of JAX's own, such as ``fori_loop``'s, was traced when another loop
  needed it first, maybe: what is known of its lines is no user's, or another's.
  """
  file = cond.debug_info.func_filename
  if file is not None and not source_info_util.is_user_filename(file):
    return ''
  out, = cond.outvars
  return next((source_info_util.summarize(e.source_info) for e in cond.eqns
               if out in e.outvars), '')


def _check_site(site: flow.Site) -> None:
  name = vt.name_of(site.eqn.primitive)
  jaxprs = [kid.jaxpr for kid in site.kids]

  def where():
    line = _line_of_predicate(jaxprs[0]) if name == 'while' else ''
    return (line or source_info_util.summarize(site.eqn.source_info)
            or source_lines.running())

  check(jaxprs, site.predicate, _NAMES[name], where)


DIVERGENCE_CHECKS = {'collectives': _check_site}
