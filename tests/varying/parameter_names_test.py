# SPDX-License-Identifier: Apache-2.0
"""What wraps a primitive passes on parameters of any name.

A library names its primitive's parameters as it likes: equinox has one called
``prim``. A wrapper with a name of its own for anything that it takes besides
would swallow the parameter, or be called with two values for one name.
"""
import ast
import functools
import importlib
import pathlib
import sys
import types

from absl.testing import parameterized
import jax
from jax._src import core as core_src
from jax._src import test_util as jtu
from jax._src.interpreters import ad as ad_src
from jax import export  # noqa: F401  for its primitives, as those below
from jax.experimental import pallas  # noqa: F401
from jax.experimental import sparse  # noqa: F401
from jax.extend import core
import jax.numpy as jnp

jax.config.parse_flags_with_absl()

X = jnp.arange(3.)
AVAL = core_src.ShapedArray(X.shape, X.dtype)
# Primitive.bind and abstract evaluation are upstream's methods.
UPSTREAM = {'self'}
# Those that a library can't call, or whose names are those of the function
# that they stand for: a loop's or call's own parameters have fixed names.
FIXED = {'checkify.check_shard_map', 'origin_walk._level', 'custom._bind_below',
         'nested.process_shard_map', 'declarations.wrapper',
         'mapped_axes.bind', 'stages.compute_on', 'batched_refs.batch_scan',
         'batched_refs.of_while'}


def module(name):
  try:
    return importlib.import_module(f'jax._src.{name}')
  except ModuleNotFoundError:
    return None  # another base's


def names_in(code):
  """All names of variables in a code object, and in those inside of it."""
  found = {*code.co_varnames, *code.co_freevars, *code.co_cellvars}
  for const in code.co_consts:
    if isinstance(const, types.CodeType):
      found |= names_in(const)
  return found


def names_of(*functions):
  """A parameter for each name in the functions, and in what they call."""
  found = set()
  for fun in functions:
    while isinstance(fun, functools.partial):
      fun = fun.func
    found |= names_in(fun.__code__)
    for cell in fun.__closure__ or ():
      if isinstance(cell.cell_contents, types.FunctionType):
        found |= names_in(cell.cell_contents.__code__)
  assert found - UPSTREAM, functions
  return dict.fromkeys(sorted(found - UPSTREAM), 7)


def recorder():
  """A primitive that keeps the parameters that it was bound with."""
  prim = core.Primitive('recorder')
  prim.seen = []
  prim.multiple_results = True

  @prim.def_impl
  def impl(*args, **params):
    prim.seen.append(params)
    return list(args)

  prim.def_abstract_eval(lambda *avals, **_: list(avals))
  return prim


def bind_after_cast(prim):
  module('varying.rules.primitives').bind_after_cast(prim)
  return prim.bind, (X, X)


def keep_casts(prim):
  module('varying.rules.primitives').keep_casts(prim)
  return prim.bind, (X, X)


def unifying_access(prim):
  return module('varying.rules.refs')._unifying_access(prim, prim.bind, 0), (X,)


def typed_by_union(prim):
  rule = module('varying.rules.primitives')._typed_by_union(prim.abstract_eval)

  def call(x, /, **params):
    prim.seen.append(params)
    return rule(AVAL, **params)
  call.__wrapped__ = rule
  return call, (X,)


def skip_zeros(prim):
  def transpose(cts, /, *args, **params):
    prim.seen.append(params)
    return cts
  ad_src.primitive_transposes[prim] = transpose
  module('varying.autodiff.transposes').skip_zeros(prim)
  zero = ad_src.Zero(AVAL.to_tangent_aval())
  linear = ad_src.UndefinedPrimal(AVAL)
  return ad_src.primitive_transposes[prim], ([X, zero], linear, linear)


def skip_integers(prim):
  def jvp(primals, tangents, /, **params):
    prim.seen.append(params)
    return primals, tangents
  ad_src.primitive_jvps[prim] = jvp
  module('varying.autodiff.transposes').skip_integers(prim)
  return ad_src.primitive_jvps[prim], ([X, X], [X, X])


def fit_rule(prim):
  vt = module('varying.types')
  forward = module('varying.autodiff.forward')

  def jvp(primals, tangents, /, **params):
    prim.seen.append(params)
    return primals, tangents
  # As where a tangent varies along more axes than its primal.
  checking, differ = vt.checking, forward._differ
  vt.checking, forward._differ = lambda: True, lambda *_: True
  try:
    return forward.fit_rule(prim, jvp, [X], [X]), ([X], [X])
  finally:
    vt.checking, forward._differ = checking, differ


def raise_no_rule(prim):
  rule = module('replication.rules.lookup').raise_no_rule

  def call(**params):
    prim.seen.append(params)
    try:
      functools.partial(rule, prim)(None, **params)
    except NotImplementedError as e:
      assert 'replication rule' in str(e), e
  call.__wrapped__ = rule
  return call, ()


def foreign_check(prim):
  rule = module('replication.rules.extensions')._check

  def call(**params):
    prim.seen.append(params)
    return functools.partial(rule, prim)(
        make_axes(), {'x'}, {'x', 'y'}, **params)
  call.__wrapped__ = rule
  return call, ()


def foreign_rewrite(prim):
  rule = module('replication.rules.extensions')._rewrite
  return functools.partial(
      rule, prim, make_axes(), [{'x'}, {'x'}]), (X, X)


def device_dependent(prim):
  rule = module('replication.rules.complete')._device_dependent_rewrite
  return functools.partial(rule, prim, make_axes(), [set(), set()]), (X, X)


def make_axes():
  return module('replication.rules.flow').Axes(('x', 'y'), {'x': 2, 'y': 2})


TYPED = [bind_after_cast, keep_casts, unifying_access, typed_by_union,
         skip_zeros, skip_integers, fit_rule]
RULES = [raise_no_rule, foreign_check, foreign_rewrite, device_dependent]
HAS_TYPES = jax.__version_info__ >= (0, 6)


def available(make):
  """True if the base has the module that the wrapper is in."""
  wanted = set(make.__code__.co_consts) & {
      'varying.rules.primitives', 'varying.rules.refs',
      'varying.autodiff.transposes', 'varying.autodiff.forward'}
  return all(module(name) is not None for name in wanted)


WRAPPERS = [m for m in (TYPED if HAS_TYPES else RULES) if available(m)]
assert len(WRAPPERS) >= 3, WRAPPERS


def loose_functions(path):
  """Functions with ``**params`` that take something besides by name."""
  count = 0
  for node in ast.walk(ast.parse(path.read_text())):
    if not isinstance(node, (ast.FunctionDef, ast.Lambda)):
      continue
    args, name = node.args, getattr(node, 'name', '<lambda>')
    if args.kwarg is None:
      continue
    count += 1
    loose = args.args or any(args.kw_defaults)
    if loose and f'{path.stem}.{name}' not in FIXED:
      yield f'{path.stem}.{name}:{node.lineno}'
  yield count


class ParameterNamesTest(jtu.JaxTestCase):

  @parameterized.named_parameters((m.__name__, m) for m in WRAPPERS)
  def test_every_local_name(self, make):
    prim = recorder()
    call, args = make(prim)
    params = names_of(getattr(call, '__wrapped__', call))
    call(*args, **params)
    self.assertEqual(prim.seen[-1], params)

  def test_rules_know_the_primitives_of_jax_alone(self):
    name_of = module('mend.foreign').name_of
    own = {p for n, m in sorted(sys.modules.items()) if n.startswith('jax.')
           for p in vars(m).values() if isinstance(p, core_src.Primitive)}
    self.assertGreater(len(own), 150)
    self.assertEqual([p for p in own if name_of(p) != p.name], [])
    other = core.Primitive('scan')
    other.def_abstract_eval(lambda x, **_: x)
    self.assertEqual(name_of(other), "another library's scan")
    undefined = core.Primitive('scan')
    undefined.abstract_eval = lambda x, **_: (x, set())
    self.assertNotEqual(name_of(undefined), 'scan')

  def test_no_wrapper_takes_names_of_its_own(self):
    here = pathlib.Path(core_src.__file__).parent
    files = [f for package in (
        'varying', 'replication', 'compute_on_ahead', 'parameter_map', 'meshes')
             for f in (here / package).rglob('*.py')]
    loose, count = [], 0
    for f in files:
      *found, n = loose_functions(f)
      loose, count = loose + found, count + n
    self.assertEqual(loose, [])
    self.assertGreater(count, 5)
