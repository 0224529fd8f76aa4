# SPDX-License-Identifier: Apache-2.0
"""Telling the primitives that other libraries define.

A table of rules that read an equation's parameters has them by the names of
JAX's primitives. A library is free to give one of its own such a name, with
parameters of its own, so a table is asked by ``name_of``: it gives JAX's
primitives their names, and all others one that no table has. Who defined a
primitive shows in the module of its abstract evaluation rule.

Cost: an attribute of the primitive; the first question of one that no
definition was seen of looks at its rule.
"""
from __future__ import annotations

from collections.abc import Callable
import functools
from typing import Any


def is_foreign(rule: Callable) -> bool:
  """True if another package than JAX's defined a primitive's rule.

  A rule with a cache of jaxlib's, as one is from 0.11 on, is of JAX.
  """
  while isinstance(rule, functools.partial):
    rule = rule.func
  module = getattr(rule, '__module__', None) or ''
  return module.partition('.')[0] not in ('jax', 'jaxlib')


def is_foreign_primitive(primitive: Any) -> bool:
  """True if another package than JAX's defined a primitive."""
  rule = primitive.abstract_eval
  wrapped = getattr(rule, '__closure__', None)
  if wrapped and rule.__module__ == 'jax._src.core':  # by def_abstract_eval
    rule = next((c.cell_contents for c in wrapped
                 if callable(c.cell_contents)), rule)
  return is_foreign(rule)


def define(primitive: Any, foreign: bool) -> str:
  """Gives a primitive the name that tables of rules have for it.

  Args:
    primitive: has been defined. What defines it anew changes nothing.
    foreign: whether another package than JAX's did so.

  Returns:
    The name.
  """
  if 'known_as' not in vars(primitive):
    primitive.known_as = (f"another library's {primitive.name}" if foreign
                          else primitive.name)
  return primitive.known_as


def name_of(primitive: Any) -> str:
  """The name that tables of rules have for a primitive.

  It is JAX's own, or that of the one whose derivative it marks (a ``VJPNode``
  of 0.12); no table has that of another library's.
  """
  try:
    return primitive.known_as
  except AttributeError:
    foreign = is_foreign_primitive(primitive)
  marked = None if foreign else getattr(primitive, 'prim', None)
  return define(primitive, foreign) if marked is None else name_of(marked)
