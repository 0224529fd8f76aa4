# SPDX-License-Identifier: Apache-2.0
"""A random key for parameters that vary along more mesh axes than it does.

Devices that share a key draw with the same underlying bits, so their draws are
correlated. From 0.7 on upstream refuses that in the samplers that are built on
``gamma``; its error is completed here by what to write. It looks at the types
of a call as it is traced. A loop's carry can come to vary later: then the loop
is traced again, with the carry cast, and upstream's check sees it.

Limits: other samplers (``uniform`` with bounds that vary, ``poisson``,
``categorical``) take a shared key, as upstream's do.
"""
from __future__ import annotations

from collections.abc import Callable
import functools

from jax._src.mend import pages
from jax._src.varying import flow
from jax._src.varying import types as vt


def refusing(insert: Callable) -> Callable:
  """Adds what to write to the error of a function that makes types alike.

  Args:
    insert: takes the sampler's name, a key and its parameters.

  Returns:
    The function.
  """
  @functools.wraps(insert)
  def checked(name, key, *params):
    try:
      return insert(name, key, *params)
    except TypeError as e:
      axes = flow.union(vt.varying(vt.typeof(p)) for p in params)
      missing = tuple(sorted(axes - vt.varying(vt.typeof(key))))
      if not missing:
        raise
      raise TypeError(
          f'{e} For draws of its own on each device pass '
          f'jax.random.fold_in(key, jax.lax.axis_index({missing})); for the '
          'same bits on all of them, '
          f"jax.lax.pcast(key, {missing}, to='varying')." +
          pages.see('varying_primitives.md#random-keys')) from None
  return checked


def _gamma(site: flow.Site, ins: list[vt.Axes]) -> None:
  flow.ordinary(site, ins)
  # Not one to be cast here: what holds it must be traced again.
  site.opaque = bool(flow.union(ins) - ins[0])


FLOW_RULES = {'random_gamma': _gamma}
