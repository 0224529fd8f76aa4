# SPDX-License-Identifier: Apache-2.0
"""Calls JAX functions on PyTorch/XLA tensors.

`call_jax` is a drop-in for ``torch_xla.core.xla_builder.call_jax``. That one
lowers with ``keep_unused=True``, because it can't tell which arguments JAX
would drop, so every unused tensor is a parameter of the computation: allocated,
transferred and held (pytorch/xla#8794). Here a function is lowered as it is,
and ``jax.stages.Lowered.parameter_map`` says which tensors to pass.

PyTorch is imported when `call_jax` is called, not before. torchax isn't needed.

A function is traced once (twice if it reads no tensor) for each set of tensor
shapes and dtypes, other arguments and JAX configuration, and never again; what
was traced is kept for as long as the process runs. PyTorch/XLA calls a
computation with one tensor at least, so one without parameters is given a
scalar that it doesn't read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import contextlib
import sys
from typing import Any, NamedTuple

import jax
from jax._src.mend import releases
from jax import numpy as jnp
from jax import tree_util
from jax._src import config
from jax._src import dtypes
from jax._src.parameter_map import map as parameter_map
import numpy as np

_API = 'jax.experimental.torch_xla.call_jax'


class _Computation(NamedTuple):
  """A lowered function.

  Attributes:
    proto: the serialized HLO module.
    feeds: for each parameter, the index of the tensor to pass; None for the
      scalar that makes up for having no parameters.
    feed_dtypes: for each parameter, its dtype.
    out_tree: the structure of the result.
  """
  proto: bytes
  feeds: tuple[int | None, ...]
  feed_dtypes: tuple[np.dtype, ...]
  out_tree: Any


# By function and context, then by what specializes it. A function is kept alive
# together with what was traced from it, so that its id stays its own.
_cache: dict[Any, tuple[Callable[..., Any], dict[Any, Any]]] = {}


def call_jax(jax_func: Callable[..., Any], args: Sequence[Any],
             kwargs: dict[str, Any] | None = None, name: str | None = None,
             override_hash: Any = None) -> Any:
  """Calls a JAX function with PyTorch/XLA tensors.

  Args:
    jax_func: a pure function that :func:`jax.jit` can trace. It gets a JAX
      array for each tensor, a JAX dtype for each ``torch.dtype``, and
      everything else as it is.
    args: the positional arguments: pytrees of tensors and hashable values.
    kwargs: the keyword arguments.
    name: what to call the computation in PyTorch/XLA's graph.
    override_hash: what to know the function by, in place of its identity, for a
      function that is made anew for each call.

  Returns:
    The function's result, with PyTorch/XLA tensors in place of arrays.

  Raises:
    ImportError: PyTorch or PyTorch/XLA is missing.
    TypeError: an argument is neither a tensor nor hashable.
    ValueError: a tensor isn't on an XLA device, or the function needs what
      can't be passed, such as the token of an ordered effect.
  """
  torch, torch_xla = _import_torch()
  from torch_xla._internal import jax_workarounds
  # Where both own an accelerator, PyTorch/XLA must have taken it first.
  jax_workarounds.jax_import_guard()
  with jax_workarounds.jax_env_context():
    pair = (tuple(args), dict(kwargs or {}))
    if _has_torchax_tensors(pair):
      import torchax.interop
      return torchax.interop.call_jax(jax_func, *pair[0], **pair[1])
    return _call(torch, torch_xla, jax_func, pair, name, override_hash)


def _call(torch: Any, torch_xla: Any, jax_func: Callable[..., Any], pair: Any,
          name: str | None, override_hash: Any) -> Any:
  """Traces `jax_func`, if that hasn't been done, and calls it."""
  leaves, tree = tree_util.tree_flatten(pair)
  is_tensor = [isinstance(x, torch.Tensor) for x in leaves]
  tensors = [x for x, yes in zip(leaves, is_tensor) if yes]
  others = [None if yes else _dtype(x) if isinstance(x, torch.dtype) else x
            for x, yes in zip(leaves, is_tensor)]
  _check(pair, leaves, is_tensor)
  with _lowering_config():
    _, by_key = _cache.setdefault(
        (override_hash or id(jax_func), config.trace_context()), (jax_func, {}))
    key = (tree, tuple((tuple(t.shape), t.dtype) for t in tensors),
           tuple(map(_exactly, others)), name)
    if key not in by_key:
      def flat(*arrays):
        it = iter(arrays)
        args, kwargs = tree_util.tree_unflatten(
            tree, [next(it) if yes else x for x, yes in zip(others, is_tensor)])
        return jax_func(*args, **kwargs)
      found = _lower(flat, [(tuple(t.shape), _dtype(t.dtype))
                            for t in tensors])
      by_key[key] = found, _callable(found, name or 'jax_func')
    computation, run = by_key[key]
  device = tensors[0].device if tensors else torch_xla.device()
  fed = []
  for index, dtype in zip(computation.feeds, computation.feed_dtypes):
    tensor = (torch.zeros((), device=device) if index is None
              else tensors[index])
    # As everywhere in JAX, 64 bits are taken as 32 unless x64 is enabled.
    fed.append(tensor.to(getattr(torch, dtype.name)))
  return tree_util.tree_unflatten(computation.out_tree, run(fed))


def _lower(fun: Callable[..., Any], types: Sequence[tuple[Any, np.dtype]]
           ) -> _Computation:
  """Lowers `fun` of flat arrays to a computation with what it uses.

  Args:
    fun: takes an array for each of `types`.
    types: pairs of a shape and a dtype.

  Returns:
    The `_Computation`.
  """
  specs = [jax.ShapeDtypeStruct(shape, dtypes.canonicalize_dtype(dtype))
           for shape, dtype in types]
  lowered = jax.jit(fun).lower(*specs)
  for p in lowered.parameter_map:
    if p.kind != 'argument':
      raise ValueError(
          f"{_API}: expected a function that needs only its arguments, got one "
          f"whose lowering also takes a {p.kind}"
          f"{f' ({p.name})' if p.name else ''}. Leave ordered effects and "
          "mutable arrays out of it.")
  feeds: tuple[int | None, ...] = lowered.kept_var_idx
  if not feeds:
    # None of the arguments is read: any will do, and a scalar stands for all.
    lowered = jax.jit(
        lambda _: fun(*[jnp.zeros(s.shape, s.dtype) for s in specs]),
        keep_unused=True).lower(jnp.float32(0))
    feeds = (None,)
  hlo: Any = lowered.compiler_ir('hlo')
  proto = hlo.as_serialized_hlo_module_proto()
  feed_dtypes = tuple(np.dtype(p.aval.dtype) for p in lowered.parameter_map)
  return _Computation(proto, feeds, feed_dtypes, lowered.out_tree)


def _callable(computation: _Computation, name: str) -> Callable[..., Any]:
  """Returns a function of a list of tensors that runs `computation`."""
  from torch_xla.core import xla_builder
  return xla_builder.xla_computation_as_func(
      xla_builder.computation_from_module_proto(name, computation.proto), name)


@contextlib.contextmanager
def _lowering_config():
  """Sets what PyTorch/XLA needs of a lowering, for its duration."""
  with contextlib.ExitStack() as stack:
    # It reads shardings as annotations of HLO, not of Shardy.
    stack.enter_context(config.use_shardy_partitioner(False))
    as_arguments = releases.constants_as_arguments()
    if as_arguments is not None:
      # Constants belong in the module: there are no tensors to pass for them.
      stack.enter_context(as_arguments(False))
    yield


def _import_torch() -> tuple[Any, Any]:
  """Returns the modules torch and torch_xla."""
  try:
    import torch
    import torch_xla
  except ImportError as e:
    raise ImportError(
        f'{_API}: expected PyTorch and PyTorch/XLA to be installed, got: {e}. '
        'Install torch and torch_xla.') from e
  return torch, torch_xla


def _has_torchax_tensors(pair: Any) -> bool:
  """Says whether torchax, if it is in use, has to take the call."""
  tensor = getattr(sys.modules.get('torchax.tensor'), 'Tensor', None)
  return tensor is not None and any(
      isinstance(x, tensor) for x in tree_util.tree_leaves(pair))


def _dtype(dtype: Any) -> np.dtype:
  """Returns the JAX dtype that has the same name as a ``torch.dtype``."""
  return np.dtype(getattr(jnp, str(dtype).removeprefix('torch.')))


def _exactly(x: Any) -> Any:
  """Returns what tells `x` from values that merely compare equal to it."""
  # 1, 1.0 and True are equal, and so are 0.0 and -0.0, but trace differently.
  if isinstance(x, np.generic):
    return type(x), x.dtype.str, x.tobytes()
  if isinstance(x, complex):
    return type(x), x.real.hex(), x.imag.hex()
  return type(x), x.hex() if isinstance(x, float) else x


def _check(pair: Any, leaves: Sequence[Any], is_tensor: Sequence[bool]) -> None:
  """Raises if an argument can't be passed, naming it."""
  for i, (x, yes) in enumerate(zip(leaves, is_tensor)):
    if yes:
      if x.device.type != 'xla':
        path = parameter_map.argument_paths(pair)[i]
        raise ValueError(
            f"{_API}: expected tensors on an XLA device, got {path} on "
            f"{x.device}. Move it there with .to('xla').")
      continue
    try:
      hash(x)
    except TypeError as e:
      path = parameter_map.argument_paths(pair)[i]
      raise TypeError(
          f'{_API}: expected tensors and hashable values, got {path} of type '
          f'{type(x).__name__}. Pass it as a tensor.') from e
