# SPDX-License-Identifier: Apache-2.0
"""Named facts of a release of JAX, each asked of JAX once.

The only module of ours that asks what a release has, beside ``release_types``,
whose facts are about types. A fact is a function without arguments: whether JAX
has something, or what stands for it here. It is found by what upstream added or
took away, not by a release's number, so that a release between two that are
mended answers for itself. The releases in a docstring are those in which it was
seen; the change came in the later one or between the two.

A fact about a module that is still being imported, and is to define later what
is asked for, is refused: an answer is kept, and would be wrong from then on.
Modules that upstream imports early ask within functions.

Cost: a fact is a look-up in a cache; what runs often keeps the answer.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
import functools
import importlib
import inspect
from typing import Any

fact = functools.cache


def find(module: str, path: str) -> Any:
  """A module's member by its dotted name; None if it has none.

  Raises:
    RuntimeError: the module is being imported, and will have it later.
  """
  head, *rest = path.split('.')
  owner = importlib.import_module(module)
  found = getattr(owner, head, None)
  if found is None and _will_define(owner, head):
    raise RuntimeError(
        f'jax._src.mend.releases: {module} was asked for {path} while it is '
        'being imported. Ask within a function that runs later.')
  for name in rest:
    found = getattr(found, name, None)
  return found


def _will_define(module: Any, name: str) -> bool:
  """True if a module is being imported, and its code names what it lacks."""
  if not getattr(module.__spec__, '_initializing', False):
    return False
  get_code = getattr(module.__spec__.loader, 'get_code', None)
  code = get_code(module.__name__) if get_code else None
  return code is not None and name in code.co_names


def first(*places: tuple[str, str]) -> Any:
  """The member at the first of some places that a release has, or None."""
  return next((x for x in (find(*p) for p in places) if x is not None), None)


def takes(module: str, path: str, parameter: str) -> bool:
  """True if a function of JAX has a parameter of that name."""
  f = find(module, path)
  return f is not None and parameter in inspect.signature(f).parameters


def optional_module(name: str) -> Any:
  """A module of ours or of jaxlib, or None where there is none.

  A build of some patches only lacks modules, as does a release that lacks what
  they are about.
  """
  try:
    return importlib.import_module(name)
  except ModuleNotFoundError as e:
    if e.name not in (name, name.rpartition('.')[0]):
      raise
    return None


def existing(module: Any, names: Sequence[str]) -> list[Any]:
  """Those of a module's members that this release has.

  Args:
    module: a module of JAX.
    names: of members, some of which are of other releases.
  """
  found = [find(module.__name__, name) for name in names]
  return [x for x in found if x is not None]


# Configuration.


@fact
def check_option() -> Any:
  """The option that a shard_map with the check on sets.

  ``_check_rep`` in 0.6.0, ``_check_vma`` from 0.10.2 on; None in 0.5.3, where
  the trace holds it.
  """
  return first(('jax._src.config', '_check_vma'),
                ('jax._src.config', '_check_rep'))


@fact
def axes_are_optional() -> bool:
  """True if ``varying_axes_in_types`` has to be on too: up to 0.6.0."""
  return find('jax._src.config', '_check_vma') is None


@fact
def auto_pcast() -> Any:
  """The option that lets operations cast operands; None up to 0.6.0."""
  return find('jax._src.config', 'auto_pcast')


@fact
def unchecked_backward_rules() -> Any:
  """The option ``disable_bwd_checks``; None up to 0.6.0."""
  return find('jax._src.config', 'disable_bwd_checks')


@fact
def constants_as_arguments() -> Any:
  """The option ``use_simplified_jaxpr_constants``; None up to 0.6.0."""
  return find('jax._src.config', 'use_simplified_jaxpr_constants')


@fact
def options_join_trace_keys() -> bool:
  """True if an option can say that it is in tracing caches' keys: by 0.8.0.

  Before, an edit to config.py adds ours.
  """
  return takes('jax._src.config', 'bool_state', 'include_in_trace_context')


# Jaxprs and primitives.


@fact
def jaxpr_classes() -> tuple[type, ...]:
  """The classes of jaxprs: one by 0.11.2, where each holds its constants."""
  jaxpr = find('jax._src.core', 'Jaxpr')
  if find('jax._src.core', 'Jaxpr.consts') is not None:
    return (jaxpr,)
  return jaxpr, find('jax._src.core', 'ClosedJaxpr')


@fact
def variables_have_suffixes() -> bool:
  """True if ``core.Var`` takes a suffix before the type: up to 0.6.0."""
  return takes('jax._src.core', 'Var.__init__', 'suffix')


@fact
def effects_name_variables() -> bool:
  """True if an effect on an input names its variable: by 0.10.2.

  Up to 0.6.0 it has the input's position.
  """
  return takes('jax._src.effects', 'JaxprInputEffect.__init__', 'input')


@fact
def binds_with_types() -> bool:
  """True if ``bind_with_trace`` is given the operands' types: by 0.10.2."""
  return takes('jax._src.core', 'Primitive.bind_with_trace', 'avals')


@fact
def refs_can_be_pinned() -> bool:
  """True if ``core.new_ref`` takes ``pin``: by 0.11.2."""
  return takes('jax._src.core', 'new_ref', 'pin')


@fact
def new_ref_name() -> str:
  """The public name of the function that makes a ref: ``jax.new_ref`` by 0.7.2.

  It was ``jax.array_ref`` in 0.7.1, ``jax.experimental.mutable_array`` before.
  """
  names = (('jax', 'new_ref'), ('jax', 'array_ref'),
           ('jax.experimental', 'mutable_array'))
  return '.'.join(next((n for n in names if find(*n) is not None), names[0]))


@fact
def make_ref() -> Callable[..., Any]:
  """The function of core that makes a ref of a value and its memory space.

  ``new_ref`` since 0.7.2, ``array_ref`` in 0.7.1, ``mutable_array`` before.
  """
  return first(('jax._src.core', 'new_ref'), ('jax._src.core', 'array_ref'),
               ('jax._src.core', 'mutable_array'))


def varying_cast(what: str, axes: Any) -> str:
  """Formats the public call that makes a value vary: ``pcast`` by 0.8.2."""
  if find('jax._src.lax.parallel', 'pcast') is None:
    return f'jax.lax.pvary({what}, {axes})'
  return f"jax.lax.pcast({what}, {axes}, to='varying')"


@fact
def cast_operands() -> Callable[..., Sequence[Any]]:
  """The function that casts operands to the union of their axes.

  ``standard_insert_pvary`` in 0.6.0, ``auto_insert_reshard`` by 0.10.2.
  """
  return first(('jax._src.core', 'auto_insert_reshard'),
                ('jax._src.core', 'standard_insert_pvary'))


@fact
def reduced_vary_cast_p() -> Any:
  """The cast from reduced to varying; None up to 0.6.0."""
  return find('jax._src.core', 'reduced_vary_cast_p')


@fact
def accumulating_transposes() -> dict[Any, Callable[..., Any]]:
  """Transposes that add to given cotangents, by primitive: from 0.7.1 on."""
  return find('jax._src.interpreters.ad', 'fancy_transposes') or {}


@fact
def vjp_node() -> Callable[[Any], Any] | None:
  """The function from a primitive to its derivative's second half: in 0.12."""
  return find('jax._src.interpreters.ad', 'vjp_node')


# Meshes, shard_map and jit.


@fact
def shard_map_module() -> Any:
  """The module of shard_map's trace and rules: experimental up to 0.6.0."""
  return (optional_module('jax._src.shard_map') or
          importlib.import_module('jax.experimental.shard_map'))


@fact
def use_concrete_mesh() -> Callable[[Any], Any]:
  """The context in which a mesh's devices are known."""
  return first(('jax._src.sharding_impls', '_internal_use_concrete_mesh'),
                ('jax._src.sharding_impls', 'use_concrete_mesh'),
                ('jax._src.mesh', 'set_concrete_mesh'))  # up to 0.5.2


@fact
def no_concrete_mesh() -> Any:
  """The mesh that ``use_concrete_mesh`` takes for none: None up to 0.6.0."""
  return find('jax._src.mesh', 'empty_concrete_mesh')


@fact
def kept_meshes() -> dict[Any, Any] | None:
  """The table in which JAX keeps all meshes alive: up to 0.6.0."""
  return find('jax._src.mesh', '_mesh_object_dict')


@fact
def inlined_while_tracing() -> tuple[Any, ...]:
  """The values of `jit`'s ``inline`` that copy a jaxpr into the outer one.

  True; in 0.12 a member of an enumeration too.
  """
  early = find('jax._src.api', 'Inline.JAX_EARLY')
  return (True,) if early is None else (True, early)


@fact
def make_jitted() -> Callable[[Any, Any], Any]:
  """The function that makes a jitted one, with its ``_jit_info``."""
  return first(('jax._src.pjit', '_make_jit_wrapper'),
                ('jax._src.pjit', '_cpp_pjit'))


# jaxlib.


@fact
def runtime() -> Any:
  """jaxlib's module of functions that xla_client has no part in.

  ``_jax``, or ``xla_client._xla`` up to 0.6.0.
  """
  return first(('jax._src.lib', '_jax'),
                ('jax._src.lib', 'xla_client._xla'))


@fact
def lapack_kernels() -> Sequence[str]:
  """The names of LAPACK's kernels; jaxlib's wrapper has them since 0.5.2."""
  wrapper = find('jax._src.lib', 'lapack')
  registrations = getattr(wrapper, 'registrations', None)
  found = (registrations()['cpu'] if registrations else
           wrapper._lapack.registrations().items())
  return [name for name, *_ in found]


@fact
def sparse_kernels() -> Any:
  """jaxlib's module of kernels for sparse arrays on CPU; None up to 0.6.0."""
  return optional_module('jaxlib.cpu_sparse')


@fact
def loads_for_devices() -> bool:
  """True if a client is told the devices of what it loads: by 0.10.2."""
  return find('jax._src.lib', 'xla_client.Client.compile_and_load') is not None


@fact
def library_forgets_nan() -> bool:
  """True if a library of the CPU's compiler takes extrema: by jaxlib 0.10.2."""
  return find('jax._src.lib', 'version') >= (0, 10, 2)


@fact
def marked_callbacks_abort() -> bool:
  """True if Shardy ends the process at callbacks where an axis has size 1."""
  return find('jax._src.lib', 'version') == (0, 6, 1)


@fact
def shardy_option() -> Any:
  """The option that Shardy partitions programs, off by default until 0.7.0.

  None up to 0.6.0, whose shard_map needs GSPMD.
  """
  if optional_module('jax._src.shard_map') is None:
    return None
  return find('jax._src.config', 'use_shardy_partitioner')
