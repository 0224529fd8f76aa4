# SPDX-License-Identifier: Apache-2.0
"""Stores dictionaries whose keys are not strings (jax#32680).

The format of an exported function has dictionaries with strings for keys, and
nodes of other types by the name under which they are registered. A dictionary
with other keys is stored as such a node, `NAME`, with its keys written as
Python literals. A reader that doesn't know the name refuses it by that name.
What was stored under an earlier name, of `_OLD_NAMES`, is read.

Keys are what a literal gives back: integers, floats, booleans, strings, bytes,
None and tuples of these.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from jax._src.mend import pages

NAME = 'dict with keys other than strings'
_OLD_NAMES = ('dict with keys other than strings (jax-mend)',)

_LITERALS = (int, float, bool, str, bytes, type(None))


class KeyedDict:
  """Stands for ``dict`` in the registry of what can be stored."""


def node_type(node_type: Any, node_data: Any) -> Any:
  """Returns the type to store a node as.

  Args:
    node_type: the node's own type, or None for a leaf.
    node_data: the type and, for a dictionary, its keys.
  """
  if node_type is dict and not all(isinstance(k, str) for k in node_data[1]):
    return KeyedDict
  return node_type


def register(serializers: dict[Any, Any],
             deserializers: dict[str, Any]) -> None:
  """Enters `KeyedDict` into the registries of `jax.export`."""
  serializers[KeyedDict] = (NAME, _write)
  for name in (NAME, *_OLD_NAMES):
    deserializers[name] = (dict, _read, lambda keys, leaves: dict(
        zip(keys, leaves)))


def _is_literal(key: Any) -> bool:
  if type(key) is tuple:
    return all(map(_is_literal, key))
  return type(key) in _LITERALS and key == key and (
      type(key) is not float or abs(key) != float('inf'))


def _write(keys: Sequence[Any]) -> bytes:
  for key in keys:
    if not _is_literal(key):
      raise TypeError(
          'jax.export: a dictionary among the arguments or results expected '
          'keys that are strings, numbers, bytes, None or tuples of these, got '
          f'{key!r} of type {type(key).__name__}. Use such keys, or a type '
          'given to jax.export.register_pytree_node_serialization.' +
          pages.see('ahead_of_time.md#an-exported-function'))
  return repr(list(keys)).encode()


def _read(data: bytes) -> list[Any]:
  return ast.literal_eval(bytes(data).decode())
