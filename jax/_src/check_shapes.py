# SPDX-License-Identifier: Apache-2.0
"""Checks shapes, dtypes and varying axes of a tree of arrays while tracing.

``check_shapes(tree, expected)`` walks both trees together. A leaf of
`expected` is a specification and stands for the whole subtree of `tree` at its
place; everything above must have the same structure. Mismatches are collected,
so that one error shows all of them.

A specification in a string is read by a small grammar::

  spec  ::=  '_' | '...' | dtype '[' dims ']' [ '{' axes '}' ]
  dtype ::=  a name such as 'f32', 'bf16', 'bool', 'float32' | '_'
  dims  ::=  sizes, '_' (any one dimension), '...' (any number of them)
  axes  ::=  mesh axis names, '...' (and any others)

Which axes a value varies along is part of its type from 0.6.0 on. In 0.5.3 it
is known to the tracers of ``shard_map`` only; inside a nested ``jit`` it is
not, and the axes are not checked there.

Cost: Python work for each leaf while tracing; no operation is traced.
"""
from __future__ import annotations

import dataclasses
import re
from typing import Any, TypeVar

from jax._src import core
from jax._src import dtypes
from jax._src.mend import manual_axes
from jax._src.mend import pages
from jax._src.mend import traces
from jax._src import tree_util
import numpy as np

T = TypeVar('T')
_SPEC = re.compile(r'([\w<>]+)\[([^\]]*)\](?:\{([^}]*)\})?')
_LEAF = tree_util.tree_structure(0)


@dataclasses.dataclass(frozen=True)
class Spec:
  """The type that a leaf must have.

  Attributes:
    text: the specification as the user wrote it, for messages.
    dtype: the short name of the dtype; None for any.
    dims: sizes; None for any one dimension, Ellipsis for any number; None
      instead of the tuple for any shape.
    axes: the mesh axes that the value varies along; None for any.
    more_axes: whether it may vary along others too.
  """
  text: str
  dtype: str | None = None
  dims: tuple | None = None
  axes: frozenset | None = None
  more_axes: bool = False


@dataclasses.dataclass(frozen=True)
class Type:
  """The type of a leaf; `axes` is None where the release cannot tell."""
  dtype: str
  shape: tuple
  axes: frozenset | None

  def __str__(self):
    names = ','.join(sorted(map(str, self.axes or ())))
    axes = f'{{{names}}}' if names else ''
    return f"{self.dtype}[{','.join(map(str, self.shape))}]{axes}"


def check_shapes(tree: T, expected: Any) -> T:
  """Checks shapes, dtypes and varying axes of arrays, while tracing.

  Works anywhere: outside and inside of :func:`jax.jit`, :func:`jax.vmap`,
  :func:`jax.grad` and :func:`jax.shard_map`. Since the argument is returned, it
  can be used inside an expression. It adds no operation to the program.

  Args:
    tree: a tree of arrays.
    expected: a tree of specifications with the structure of ``tree``, or with
      one specification in the place of a subtree for each of its leaves
      (in the place of a None it is a mismatch). A specification is one of

      * a string: ``"f32[4,8]"``, ``"bf16[]"``, ``"f32[4]{x,y}"``. In the
        brackets ``_`` is one dimension of any size and ``...`` any number of
        dimensions; ``_`` in place of the dtype is any dtype. The braces name
        the mesh axes of ``shard_map`` that the value varies along: ``{}`` is
        none, ``{x,...}`` is ``x`` and perhaps others. Without braces the axes
        are not checked. ``"_"`` and ``"..."`` are any array.
      * a :class:`jax.ShapeDtypeStruct`, or anything else with ``shape`` and
        ``dtype``. Varying axes are checked if it declares them.
      * ``...``: anything at all.

  Returns:
    ``tree``.

  Raises:
    TypeError: if a leaf is not as expected or the structures differ. The
      message lists every mismatch: path, expected and got.
    ValueError: if a string can't be read.

  Examples:
    >>> import jax
    >>> import jax.numpy as jnp
    >>> x = jax.debug.check_shapes(jnp.ones((4, 8)), "f32[4,8]")
    >>> x.shape
    (4, 8)

    >>> @jax.jit
    ... def layer(params, x):
    ...   jax.debug.check_shapes(params, {"w": "f32[_,8]", "b": "f32[8]"})
    ...   return jax.debug.check_shapes(x @ params["w"], "f32[...,8]")
    >>> params = {"w": jnp.ones((4, 8)), "b": jnp.ones(3)}
    >>> layer(params, jnp.ones((2, 5)))  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    TypeError: jax.debug.check_shapes: 1 mismatch:
      tree['b']: expected f32[8], got f32[3]
  """
  errors: list[str] = []
  _check(tree, expected, '', errors)
  if errors:
    count = '1 mismatch' if len(errors) == 1 else f'{len(errors)} mismatches'
    raise TypeError('\n'.join(
        [f'jax.debug.check_shapes: {count}:', *errors,
         'Change the values or what is expected of them; `_` and `...` stand'
         ' for any size, any dtype and any further dimensions.']) +
        pages.see('check_shapes.md#what-to-expect'))
  return tree


def _check(tree: Any, expected: Any, path: str, errors: list[str]) -> None:
  """Compares one node and what is below it."""
  if expected is Ellipsis:
    return
  if _is_spec(expected):
    spec = parse(expected)
    if tree is None:  # no leaf, so that an absent array would go unnoticed
      _check_leaf(tree, spec, path, errors)
    for keys, leaf in tree_util.tree_flatten_with_path(tree)[0]:
      _check_leaf(leaf, spec, path + tree_util.keystr(keys), errors)
    return
  children, structure = _one_level(tree)
  wanted, wanted_structure = _one_level(expected)
  if structure != wanted_structure:
    errors.append(f'  tree{path}: expected {_describe(expected)}, got'
                  f' {_describe(tree)}')
    return
  if wanted_structure == _LEAF:
    raise ValueError(
        f'jax.debug.check_shapes: {expected!r} of type'
        f' {type(expected).__name__} is not a specification. Use a string such'
        " as 'f32[4,8]', a jax.ShapeDtypeStruct or `...`." +
        pages.see('check_shapes.md#what-to-expect'))
  for (key, child), (_, spec) in zip(children, wanted):
    _check(child, spec, path + tree_util.keystr(key), errors)


def _one_level(node: Any) -> tuple[list, Any]:
  """The children of a tree's node with their keys, and the node's type."""
  children, structure = tree_util.tree_flatten_with_path(
      node, is_leaf=lambda x: x is not node)
  is_leaf = len(children) == 1 and not children[0][0]
  return ([] if is_leaf else children), structure


def _describe(node: Any) -> str:
  """The type of a leaf, or the structure of what is not one."""
  if _one_level(node)[1] == _LEAF:
    leaf = leaf_type(node)
    return str(leaf) if leaf else f'a {type(node).__name__}'
  text = repr(tree_util.tree_structure(node, is_leaf=_is_spec))
  return re.sub(r'^PyTreeDef\((.*)\)$', r'\1', text, flags=re.DOTALL)


def _is_spec(x: Any) -> bool:
  if isinstance(x, (str, Spec)) or x is Ellipsis:
    return True
  # A node can have these, too, such as a sparse matrix: its leaves count.
  return (hasattr(x, 'shape') and hasattr(x, 'dtype')
          and _one_level(x)[1] == _LEAF)


def _short(dtype: Any) -> str:
  if dtypes.issubdtype(dtype, dtypes.extended):
    return str(dtype)
  if dtype == dtypes.float0:
    return 'float0'
  return _short_name(np.dtype(dtype).name)


def _short_name(name: str) -> str:
  """'float32' as 'f32', and what is short already as it is."""
  for long, short in (('bfloat', 'bf'), ('float', 'f'), ('uint', 'u'),
                      ('int', 'i'), ('complex', 'c')):
    if (name.startswith(long) and name[len(long):len(long) + 1].isdigit()
        and name != 'float0'):  # JAX prints this one in full
      return short + name[len(long):]
  return name


def parse(spec: Any) -> Spec:
  """Reads a specification.

  Args:
    spec: a string, a `Spec`, or an object with `shape` and `dtype`.

  Returns:
    A `Spec`.

  Raises:
    ValueError: if it is a string that the grammar does not cover.
  """
  if isinstance(spec, Spec):
    return spec
  if not isinstance(spec, str):
    axes = _declared_axes(spec)
    kind = Type(_short(spec.dtype), tuple(spec.shape), axes)
    return Spec(str(kind), kind.dtype, kind.shape, axes)
  text = spec.replace(' ', '')
  if text in ('_', '...'):
    return Spec(spec)
  match = _SPEC.fullmatch(text)
  dims = _parse_dims(match[2]) if match else None
  if match is None or dims is None:
    raise ValueError(
        f"jax.debug.check_shapes: can't read the specification {spec!r}. Write"
        " it like 'f32[4,8]', 'f32[4,_]', '_[...,8]' or 'f32[4]{x,y}'." +
        pages.see('check_shapes.md#what-to-expect'))
  dtype = None if match[1] == '_' else _short_name(match[1])
  axes, more = None, False
  if match[3] is not None:
    # JAX prints '{V:x}' and '{V:(x,y)}' from 0.10 on.
    names = [a for a in re.sub(r'^V:|[()]', '', match[3]).split(',') if a]
    more = '...' in names or '_' in names
    axes = frozenset(a for a in names if a not in ('...', '_'))
  return Spec(spec, dtype, dims, axes, more)


def _parse_dims(text: str) -> tuple | None:
  items = text.split(',') if text else []
  if items.count('...') > 1:
    return None
  dims: list = []
  for item in items:
    if item == '...':
      dims.append(Ellipsis)
    elif item == '_':
      dims.append(None)
    elif item.isdigit():
      dims.append(int(item))
    else:
      return None
  return tuple(dims)


def _declared_axes(x: Any) -> frozenset | None:
  """The axes that a ShapeDtypeStruct or a type declares, None if it doesn't."""
  if isinstance(x, core.AbstractValue):
    has_axes = manual_axes.AXES_OF_ARRAY is not None
    return manual_axes.varying(x) if has_axes else None
  return manual_axes.declared(x)


def leaf_type(x: Any) -> Type | None:
  """The type of an array, a number or a ShapeDtypeStruct; None for others."""
  try:
    aval = traces.typeof(x)
  except TypeError:
    if not (hasattr(x, 'shape') and hasattr(x, 'dtype')):
      return None
    return Type(_short(x.dtype), tuple(x.shape), _declared_axes(x))
  if not (hasattr(aval, 'shape') and hasattr(aval, 'dtype')):
    return None
  axes = _declared_axes(aval)
  if axes is None:
    axes = _axes_from_tracer(x)
  return Type(_short(aval.dtype), tuple(aval.shape), axes)


def _axes_from_tracer(x: Any) -> frozenset | None:
  """The varying axes in 0.5.3, from what shard_map's tracers call `rep`."""
  while isinstance(x, core.Tracer):
    rep = getattr(x, 'rep', None)
    if rep is not None:
      auto: frozenset = getattr(x._trace, 'auto', frozenset())
      return frozenset(x._trace.mesh.axis_names) - frozenset(rep) - auto
    x = getattr(x, 'primal', getattr(x, 'val', None))
  return None if x is None else frozenset()


def _check_leaf(leaf: Any, spec: Spec, path: str, errors: list[str]) -> None:
  got = leaf_type(leaf)
  if got is None:
    errors.append(f'  tree{path}: expected {spec.text}, got a'
                  f' {type(leaf).__name__}, which is not an array')
  elif not (spec.dtype in (None, got.dtype) and _shape_fits(spec, got.shape)
            and _axes_fit(spec, got.axes)):
    errors.append(f'  tree{path}: expected {spec.text}, got {got}')


def _shape_fits(spec: Spec, shape: tuple) -> bool:
  if spec.dims is None:
    return True
  dims = list(spec.dims)
  if Ellipsis in dims:
    i = dims.index(Ellipsis)
    missing = len(shape) - (len(dims) - 1)
    if missing < 0:
      return False
    dims[i:i + 1] = [None] * missing
  return len(dims) == len(shape) and all(
      want is None or want == size for want, size in zip(dims, shape))


def _axes_fit(spec: Spec, axes: frozenset | None) -> bool:
  if spec.axes is None or axes is None:
    return True
  axes = frozenset(map(str, axes))
  wanted = frozenset(map(str, spec.axes))
  return wanted <= axes if spec.more_axes else wanted == axes
