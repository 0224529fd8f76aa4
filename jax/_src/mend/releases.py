# SPDX-License-Identifier: Apache-2.0
"""Named facts of a release of JAX, each asked of JAX once.

The only module of ours that asks what a release has, beside ``release_types``,
whose facts are about types. A fact is a function without arguments: whether JAX
has something, or what stands for it here. It is found by what upstream added or
took away, not by a release's number, so that a release between two that are
mended answers for itself. Beside each stand the releases on which it holds, or
the answer on each; a test asks all that are mended, and the docstring of the
fact ends with them. The change came in the first of them or after the one
before.

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

# All facts, by module and name.
facts: dict[str, Callable[[], Any]] = {}


def fact(answers: str | dict[str, Any]) -> Callable[[Callable], Callable]:
  """Declares a function without arguments as a fact of the release.

  Args:
    answers: the releases, as version specifiers, on which it is True, or
      something at all; or its answer by these: a name, that of the module that
      it is or is from, how many they are, or None.

  Returns:
    A decorator for the function, which then keeps its answer.
  """
  def declare(f):
    kept = functools.cache(f)
    kept.answers = answers
    said = (answers or 'all' if isinstance(answers, str) else
            '; '.join(f'{k}: {v}' for k, v in answers.items()))
    if f.__doc__:  # python -OO has none
      kept.__doc__ = f'{f.__doc__.rstrip()}\n\n  Releases: {said}.\n  '
    facts[f'{f.__module__}.{f.__name__}'] = kept
    return kept
  return declare


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


@fact({'<0.6': None, '==0.6.0': 'check_rep', '>=0.6.1': 'check_vma'})
def check_option() -> Any:
  """The option that a shard_map with the check on sets.

  Where there is none the trace holds it.
  """
  return first(('jax._src.config', '_check_vma'),
                ('jax._src.config', '_check_rep'))


@fact('<=0.6.0')
def axes_are_optional() -> bool:
  """True if ``varying_axes_in_types`` has to be on too."""
  return find('jax._src.config', '_check_vma') is None


@fact('>=0.10.1')
def auto_pcast() -> Any:
  """The option that lets operations cast operands."""
  return find('jax._src.config', 'auto_pcast')


@fact('>=0.9')
def unchecked_backward_rules() -> Any:
  """The option ``disable_bwd_checks``."""
  return find('jax._src.config', 'disable_bwd_checks')


@fact('>=0.7')
def constants_as_arguments() -> Any:
  """The option ``use_simplified_jaxpr_constants``."""
  return find('jax._src.config', 'use_simplified_jaxpr_constants')


@fact('>=0.8')
def options_join_trace_keys() -> bool:
  """True if an option can say that it is in tracing caches' keys.

  Before, an edit to config.py adds ours.
  """
  return takes('jax._src.config', 'bool_state', 'include_in_trace_context')


# Jaxprs and primitives.


@fact({'<0.11': 2, '>=0.11': 1})
def jaxpr_classes() -> tuple[type, ...]:
  """The classes of jaxprs; if it is one, each jaxpr holds its constants."""
  jaxpr = find('jax._src.core', 'Jaxpr')
  if find('jax._src.core', 'Jaxpr.consts') is not None:
    return (jaxpr,)
  return jaxpr, find('jax._src.core', 'ClosedJaxpr')


@fact('<=0.6.1')
def variables_have_suffixes() -> bool:
  """True if ``core.Var`` takes a suffix before the type."""
  return takes('jax._src.core', 'Var.__init__', 'suffix')


@fact('>=0.10.2')
def effects_name_variables() -> bool:
  """True if an effect on an input names its variable.

  Before, it has the input's position.
  """
  return takes('jax._src.effects', 'JaxprInputEffect.__init__', 'input')


@fact('>=0.9.2')
def binds_with_types() -> bool:
  """True if ``bind_with_trace`` is given the operands' types."""
  return takes('jax._src.core', 'Primitive.bind_with_trace', 'avals')


@fact('>=0.11.1')
def refs_can_be_pinned() -> bool:
  """True if ``core.new_ref`` takes ``pin``."""
  return takes('jax._src.core', 'new_ref', 'pin')


@fact({
    '<=0.6.0': 'jax.new_ref',  # there is none
    '>=0.6.1,<=0.7.0': 'jax.experimental.mutable_array',
    '==0.7.1': 'jax.array_ref', '>=0.7.2': 'jax.new_ref'})
def new_ref_name() -> str:
  """The public name of the function that makes a ref."""
  names = (('jax', 'new_ref'), ('jax', 'array_ref'),
           ('jax.experimental', 'mutable_array'))
  return '.'.join(next((n for n in names if find(*n) is not None), names[0]))


@fact({'<=0.7.0': 'mutable_array', '==0.7.1': 'array_ref',
       '>=0.7.2': 'new_ref'})
def make_ref() -> Callable[..., Any]:
  """The function of core that makes a ref of a value and its memory space."""
  return first(('jax._src.core', 'new_ref'), ('jax._src.core', 'array_ref'),
               ('jax._src.core', 'mutable_array'))


def varying_cast(what: str, axes: Any) -> str:
  """Formats the public call that makes a value vary: ``pcast`` by 0.8.2."""
  if find('jax._src.lax.parallel', 'pcast') is None:
    return f'jax.lax.pvary({what}, {axes})'
  return f"jax.lax.pcast({what}, {axes}, to='varying')"


@fact({'<0.6': None, '>=0.6,<=0.10.0': 'standard_insert_pvary',
       '>=0.10.1': 'auto_insert_reshard'})
def cast_operands() -> Callable[..., Sequence[Any]]:
  """The function that casts operands to the union of their axes."""
  return first(('jax._src.core', 'auto_insert_reshard'),
                ('jax._src.core', 'standard_insert_pvary'))


@fact('>=0.8.2')
def reduced_vary_cast_p() -> Any:
  """The cast from reduced to varying."""
  return find('jax._src.core', 'reduced_vary_cast_p')


@fact('>=0.7.1')
def accumulating_transposes() -> dict[Any, Callable[..., Any]]:
  """Transposes that add to given cotangents, by primitive."""
  return find('jax._src.interpreters.ad', 'fancy_transposes') or {}


@fact('>=0.12')
def vjp_node() -> Callable[[Any], Any] | None:
  """The function from a primitive to its derivative's second half."""
  return find('jax._src.interpreters.ad', 'vjp_node')


# Meshes, shard_map and jit.


@fact({'<=0.6.0': 'jax.experimental.shard_map',
       '>=0.6.1': 'jax._src.shard_map'})
def shard_map_module() -> Any:
  """The module of shard_map's trace and rules."""
  return (optional_module('jax._src.shard_map') or
          importlib.import_module('jax.experimental.shard_map'))


@fact({'<=0.5.2': 'set_concrete_mesh', '==0.5.3': 'use_concrete_mesh',
       '>=0.6': '_internal_use_concrete_mesh'})
def use_concrete_mesh() -> Callable[[Any], Any]:
  """The context in which a mesh's devices are known."""
  return first(('jax._src.sharding_impls', '_internal_use_concrete_mesh'),
                ('jax._src.sharding_impls', 'use_concrete_mesh'),
                ('jax._src.mesh', 'set_concrete_mesh'))  # up to 0.5.2


@fact('>=0.7.1')
def no_concrete_mesh() -> Any:
  """The mesh that ``use_concrete_mesh`` takes for none."""
  return find('jax._src.mesh', 'empty_concrete_mesh')


@fact('<0.10')
def kept_meshes() -> dict[Any, Any] | None:
  """The table in which JAX keeps all meshes alive."""
  return find('jax._src.mesh', '_mesh_object_dict')


@fact({'<0.11': 1, '>=0.11': 2})
def inlined_while_tracing() -> tuple[Any, ...]:
  """The values of `jit`'s ``inline`` that copy a jaxpr into the outer one.

  True, and a member of an enumeration.
  """
  early = find('jax._src.api', 'Inline.JAX_EARLY')
  return (True,) if early is None else (True, early)


@fact({'<0.6': '_make_jit_wrapper', '>=0.6': '_cpp_pjit'})
def make_jitted() -> Callable[[Any, Any], Any]:
  """The function that makes a jitted one, with its ``_jit_info``."""
  return first(('jax._src.pjit', '_make_jit_wrapper'),
                ('jax._src.pjit', '_cpp_pjit'))


# jaxlib.


@fact({'<=0.6.0': 'jaxlib.xla_extension', '>=0.6.1': 'jaxlib._jax'})
def runtime() -> Any:
  """jaxlib's module of functions that xla_client has no part in."""
  return first(('jax._src.lib', '_jax'),
                ('jax._src.lib', 'xla_client._xla'))


@fact('')
def lapack_kernels() -> Sequence[str]:
  """The names of LAPACK's kernels; jaxlib's wrapper has them since 0.5.2."""
  wrapper = find('jax._src.lib', 'lapack')
  registrations = getattr(wrapper, 'registrations', None)
  found = (registrations()['cpu'] if registrations else
           wrapper._lapack.registrations().items())
  return [name for name, *_ in found]


@fact('>=0.6.1')
def sparse_kernels() -> Any:
  """jaxlib's module of kernels for sparse arrays on CPU."""
  return optional_module('jaxlib.cpu_sparse')


@fact('>=0.6.1')
def loads_for_devices() -> bool:
  """True if a client is told the devices of what it loads."""
  return find('jax._src.lib', 'xla_client.Client.compile_and_load') is not None


@fact('>=0.10.2')
def library_forgets_nan() -> bool:
  """True if a library of the CPU's compiler takes extrema."""
  return find('jax._src.lib', 'version') >= (0, 10, 2)


@fact('==0.6.1')
def marked_callbacks_abort() -> bool:
  """True if Shardy ends the process at callbacks where an axis has size 1."""
  return find('jax._src.lib', 'version') == (0, 6, 1)


@fact('>=0.6.1')
def shardy_option() -> Any:
  """The option that Shardy partitions programs, off by default until 0.7.0.

  Where there is none, shard_map needs GSPMD.
  """
  if optional_module('jax._src.shard_map') is None:
    return None
  return find('jax._src.config', 'use_shardy_partitioner')
