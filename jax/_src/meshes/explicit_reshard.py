# SPDX-License-Identifier: Apache-2.0
"""Reshards operands over Explicit axes where only one placement is possible.

From release to release, programs over Explicit mesh axes are refused that ran
before. With the option ``jax_explicit_reshard`` at 'warn' or 'allow', what an
operation refuses is resharded if its other operands, or its parameters, leave
one placement only; 'warn' says where, and the line to write.

A gather or scatter within the elements of a batch is refused unless its
result's spec is given. If that can be one only, it is given here, and nothing
is moved.

An operation that raises has its rule looked up in ``reshard_rules``, by the
primitive's name. A rule says which specs the operands must have; ``None`` if
that is open. Then the operation is bound again. Where the refusal stands in a
function and not in a primitive, the function asks first.

Cost: a comparison for functions that ask, nothing for operations. What is
resharded moves data between devices, as the line would that 'warn' names.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import operator
from typing import Any

from jax._src import config
from jax._src.mend import foreign
from jax._src.mend import trace_key
from jax._src.mend import user_warnings
from jax._src.meshes import reshard_rules as rules

explicit_reshard = trace_key.option(
    config.enum_state,
    name='jax_explicit_reshard',
    enum_values=['refuse', 'warn', 'allow'],
    default='refuse',
    help=('What to do with an operation on arrays over Explicit mesh axes that '
          'refuses their shardings, if only one placement is possible: '
          "'refuse' it, reshard them and 'warn', or 'allow' it."))

def asked_for() -> bool:
  return explicit_reshard.value != 'refuse'


def bind_resharded(error: Exception, prim, trace, args, params) -> Any:
  """Binds a primitive that refused the shardings of its operands.

  Args:
    error: why it was refused.
    prim: the primitive.
    trace: the trace that it was bound in.
    args: its operands.
    params: its parameters.

  Returns:
    What the primitive returns of resharded operands.

  Raises:
    Exception: ``error``, if the option doesn't ask for it or more than one
      placement is possible.
  """
  from jax._src import core
  from jax._src.interpreters import ad
  from jax._src.interpreters import partial_eval as pe
  name = foreign.name_of(prim)
  rule = rules.RULES.get(name) or rules.RESULTS.get(name)
  # Those that differentiate: a rule may apply operations to the tangents that
  # refuse what the primal operation was given anew.
  if (rule is None or not asked_for() or not isinstance(trace, (
      pe.DynamicJaxprTrace, pe.JaxprTrace, ad.JVPTrace, ad.LinearizeTrace))):
    raise error
  avals = [core.typeof(x) for x in args]
  if any(_summed(a) for a in avals):
    raise error
  specs: Any = rule(avals, params)
  if specs is None:
    raise error
  if name in rules.RESULTS:
    return _with_result(error, prim, trace, args, params, specs)
  mesh = _mesh_of(args)
  try:
    with core.set_current_trace(trace):
      new = [_reshard(x, a, s, f'operand {n} of {prim.name}',
                      mesh if _is_nowhere(a) else None)
             for n, (x, a, s) in enumerate(zip(args, avals, specs))]
      if all(map(operator.is_, new, args)):
        raise error
      return prim.bind(*new, **params)
  except (core.ShardingTypeError, ValueError):
    raise error from None


def _with_result(error: Exception, prim, trace, args, params,
                 spec: rules.Spec) -> Any:
  """Binds a primitive with the only spec that its result can have."""
  from jax._src import core
  from jax._src import pjit
  from jax._src.named_sharding import NamedSharding
  mesh = _mesh_of(args)
  if mesh is None or len(set(rules.names_of(spec))) < len(
      rules.names_of(spec)):
    raise error
  with core.set_current_trace(trace):
    return pjit.auto_axes(
        functools.partial(prim.bind, **params), axes=mesh.explicit_axes,
        out_sharding=NamedSharding(mesh, _pspec(spec)))(*args)


def _mesh_of(args):
  """The one mesh of the operands that are over one, or None.

  Returns:
    The mesh with its devices, if the operands hold arrays.
  """
  from jax._src import core
  from jax._src.mend import traces
  avals = map(core.typeof, args)
  meshes = {a.sharding.mesh for a in avals if rules.is_placed(a)}
  if len(meshes) != 1:
    return None
  mesh, = meshes
  held = (getattr(traces.innermost(x), 'sharding', None) for x in args)
  return next((s.mesh for s in held if getattr(
      getattr(s, 'mesh', None), 'abstract_mesh', None) == mesh), mesh)


def _reshard(x, aval, spec: rules.Spec | None, what: str, to=None):
  """``x`` with this spec, and a warning if it hasn't had it."""
  if spec is None or to is None and spec == rules.spec_of(aval):
    return x
  from jax._src import pjit
  from jax._src.named_sharding import NamedSharding
  mesh = to or aval.sharding.mesh
  if len(set(rules.names_of(spec))) < len(rules.names_of(spec)) or any(
      n % rules.size_of(mesh, s) for n, s in zip(aval.shape, spec)):
    raise ValueError(f'{what} of shape {aval.shape} has no spec {spec}')
  new = pjit.reshard(x, NamedSharding(mesh, _pspec(spec)) if to else
                     aval.sharding.update(spec=_pspec(spec)))
  if explicit_reshard.value == 'warn':
    written = _text(spec)
    if to:
      written = f'jax.NamedSharding(mesh, {written})'
    user_warnings.warn(
        f'jax_explicit_reshard: {_users_line()}: {what}, '
        f'{aval.str_short(True)}, is resharded. To do so yourself, write '
        f'jax.sharding.reshard(x, {written}) for it there.',
        user_warnings.ReshardWarning)
  return new


def _users_line() -> str:
  """The user's source line, also within functions of JAX that are jitted."""
  frame = user_warnings.user_frame()
  return f'{frame.f_code.co_filename}:{frame.f_lineno}' if frame else 'unknown'


def _text(spec: rules.Spec) -> str:
  return f'jax.P({", ".join(map(repr, spec))})'


def _pspec(spec: rules.Spec):
  from jax._src.partition_spec import PartitionSpec
  return PartitionSpec(*spec)


def _summed(aval) -> bool:
  spec = getattr(getattr(aval, 'sharding', None), 'spec', None)
  return bool(getattr(spec, 'unreduced', None) or
              getattr(spec, 'reduced', None))


def _explicit(mesh, names) -> bool:
  return all('Explicit' in str(mesh._name_to_type[n]) for n in names)


def to_in_specs(args: list, specs, mesh, manual_axes) -> list:
  """The arguments of a shard_map over Explicit axes, at its in_specs.

  Args:
    args: the arguments.
    specs: their in_specs.
    mesh: the mesh, or what of it is known while tracing.
    manual_axes: the axes that the ``shard_map`` is over.

  Returns:
    The arguments, each resharded along ``manual_axes`` to what its in_spec
    says. Along others it stays as it is.
  """
  if not asked_for() or not _explicit(mesh, manual_axes):
    return args
  from jax._src import core
  from jax._src.partition_spec import PartitionSpec
  new = []
  for n, (x, spec) in enumerate(zip(args, specs)):
    aval = core.typeof(x)
    to = None
    if isinstance(spec, PartitionSpec) and _is_nowhere(aval):
      aval, to = _over(aval, mesh), mesh  # a NumPy array, or of one device
    if (isinstance(spec, PartitionSpec) and rules.is_placed(aval)
        and not _summed(aval) and _alike(aval.sharding.mesh, mesh)
        and _explicit(aval.sharding.mesh, manual_axes)):
      wanted = _along(manual_axes, rules.spec_of(aval), tuple(spec))
      if wanted is None or not rules.names_of(wanted):
        to = None
      x = _reshard(x, aval, wanted, f'argument {n} of shard_map', to)
    new.append(x)
  return new


def _alike(mesh, other) -> bool:
  """True if the axes of two meshes have the same names and sizes."""
  return dict(mesh.shape) == dict(other.shape)


def _is_nowhere(aval) -> bool:
  """True if the type says of no mesh that the array is over it."""
  return rules.is_array(aval) and aval.sharding.mesh.empty


def _over(aval, mesh):
  """The type of the array, whole on each device of a mesh."""
  from jax._src.named_sharding import NamedSharding
  return aval.update(sharding=NamedSharding(mesh.abstract_mesh, _pspec(())))


def _along(manual_axes, now: rules.Spec, spec: rules.Spec) -> rules.Spec | None:
  """``now``, with what ``spec`` says of ``manual_axes``; None if it's open."""
  spec = spec + (None,) * (len(now) - len(spec))
  new = []
  for s, want in zip(now, spec):
    rest = [n for n in rules.names_of((s,)) if n not in manual_axes]
    if (rest and len(rest) < len(rules.names_of((s,)))
        and rules.names_of((want,))):
      new.append(s)  # of both kinds already: as it is, or refused
    elif rest and want is not None:
      return None  # which of the two comes first?
    else:
      new.append(want if not rest else rest[0] if len(rest) == 1
                 else tuple(rest))
  return tuple(new)


def constrained(x, aval, sharding):
  """A value over Explicit axes, as with_sharding_constraint asserts it to be.

  Returns:
    The value at that sharding, and its type.
  """
  from jax._src import core
  from jax._src.partition_spec import PartitionSpec
  if not asked_for() or not rules.is_placed(aval) or _summed(aval):
    return x, aval
  spec = tuple(sharding.spec) + (None,) * (len(aval.shape) - len(sharding.spec))
  spec = tuple(now if s is PartitionSpec.UNCONSTRAINED else s
               for now, s in zip(rules.spec_of(aval), spec))
  x = _reshard(x, aval, spec, 'the operand of with_sharding_constraint')
  return x, core.typeof(x)


def whole(x, axis, what: str):
  """``x``, whole along an axis, several, or all of them (None)."""
  from jax._src import core
  if not asked_for():
    return x
  aval = core.typeof(x)
  if not rules.is_placed(aval) or _summed(aval):
    return x
  if axis is None:
    axis = range(len(aval.shape))
  dims = axis if isinstance(axis, (tuple, list, range)) else (axis,)
  return _reshard(x, aval, rules.without(rules.spec_of(aval), dims), what)


def of_whole_matrix(f: Callable[..., Any]) -> Callable[..., Any]:
  """A function of a matrix, or of a batch of them, given each as a whole."""
  @functools.wraps(f)
  def call(x, /, *args, **kwargs):
    return f(whole(x, (-2, -1), 'the matrix'), *args, **kwargs)
  return call


def by_elements(f: Callable[..., Any]) -> Callable[..., Any]:
  """A function of batches of matrices, of single ones if they are spread.

  Which element of the batch an index is of is not in its type.
  """
  @functools.wraps(f)
  def call(*args):
    from jax._src import api
    from jax._src import core
    avals = [core.typeof(x) for x in args]
    batch = avals[0].shape[:-2]
    if not asked_for() or not all(
        a.shape[:-2] == batch for a in avals) or not any(
        rules.names_of(rules.spec_of(a)[:-2])
        for a in avals if rules.is_placed(a)):
      return f(*args)
    g = f
    for _ in batch:
      g = api.vmap(g)
    return g(*args)
  return call


def beside_indices(f: Callable[..., Any]) -> Callable[..., Any]:
  """A function of an array and indices that may be spread.

  An array over no mesh is put over theirs, whole on each device.
  """
  @functools.wraps(f)
  def call(x, indices, /, **kwargs):
    from jax._src import basearray
    from jax._src import core
    from jax._src import tree_util
    if asked_for() and _is_nowhere(aval := core.typeof(x)):
      given = [i for i in tree_util.tree_leaves(indices)
               if isinstance(i, basearray.Array)]
      if any(rules.names_of(rules.spec_of(a)) for a in map(core.typeof, given)
             if rules.is_placed(a)):
        x = _reshard(x, aval, (None,) * len(aval.shape), 'the indexed array',
                     _mesh_of(given))
    return f(x, indices, **kwargs)
  return call


def matmul(a, b) -> tuple[Any, Any] | None:
  """Operands of jnp.matmul whose batch one is spread along, and one isn't.

  Returns:
    The operands, resharded; None if that is of no use.
  """
  from jax._src import core
  avals = [core.typeof(a), core.typeof(b)]
  if not asked_for() or not all(
      rules.is_placed(x) and not _summed(x) for x in avals):
    return None
  specs = [list(rules.spec_of(x)) for x in avals]
  for n in range(3, min(len(a.shape), len(b.shape)) + 1):
    both = rules.common_spec((specs[0][-n],), (specs[1][-n],))
    if both is None or a.shape[-n] != b.shape[-n]:
      return None
    specs[0][-n], = specs[1][-n], = both
  if all(tuple(s) == rules.spec_of(t) for s, t in zip(specs, avals)):
    return None
  a, b = (_reshard(x, t, tuple(s), f'operand {n} of matmul')
          for n, (x, t, s) in enumerate(zip((a, b), avals, specs)))
  return a, b


def mapped_alike(args: list, dims: Sequence[int | None]) -> list:
  """Spreads the mapped dimensions of arguments as the one spread among them."""
  from jax._src import core
  if not asked_for():
    return args
  try:
    avals = [core.typeof(x) for x in args]
  except TypeError:  # such as sparse arrays
    return args
  placed = [(x, a, d) for x, a, d in zip(args, avals, dims)
            if d is not None and rules.is_placed(a)]
  held = {rules.spec_of(a)[d] for _, a, d in placed} - {None}
  if len(held) != 1:
    return args
  entry, = held
  # Under jit a type is enough; arrays name the devices.
  mesh = next((x.sharding.mesh for x, *_ in placed
               if not isinstance(x, core.Tracer)), placed[0][1].sharding.mesh)
  new = []
  for n, (x, a, d) in enumerate(zip(args, avals, dims)):
    nowhere = _is_nowhere(a)  # such as a constant
    if d is not None and not _summed(a) and (nowhere or rules.is_placed(a)):
      a, to = (_over(a, mesh), mesh) if nowhere else (a, None)
      spec = list(rules.spec_of(a))
      spec[d] = entry
      x = _reshard(x, a, tuple(spec), f'argument {n} of vmap', to)
    new.append(x)
  return new
