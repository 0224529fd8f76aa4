# SPDX-License-Identifier: Apache-2.0
"""Which argument became which parameter, checked by running the module raw.

The oracle is jaxlib's own client: it compiles a lowered module and executes it
with a flat list of buffers, knows nothing of the arguments that JAX dropped,
and refuses a list of the wrong length. Each case feeds it what
``parameter_map.values`` returns and compares with the function, run by JAX.
"""

import contextlib
import functools
import inspect
import re
import sys

from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import compiler
from jax._src import config
from jax._src import core
from jax._src import test_util as jtu
from jax._src import xla_bridge
from jax._src.interpreters import mlir
from jax._src.lib import xla_client as xc
from jax.experimental import io_callback
from jax.experimental import serialize_executable
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np
from testing.sharding import eight_devices, shard_map

from parameter_map.testing.hoisting import CAN_HOIST, hoisting
from testing.red import red

jax.config.parse_flags_with_absl()
# What was read from a cache is written without its code, but for another patch.
jax.config.update('jax_enable_compilation_cache', False)

# What pristine JAX says.
NO_SUCH_NAME = (r"^AttributeError: '[LCE]\w+ed' object has no attribute "
                r"'[kpr]\w+_\w+'")
with contextlib.suppress(RuntimeError):
  eight_devices()

try:
  from jax.experimental import hijax
except ImportError:
  hijax = None

X = np.arange(4, dtype=np.float32)
Y = np.arange(4, dtype=np.float32) + 10
Z = np.arange(6, dtype=np.int32).reshape(2, 3)


def entry_types(lowered):
  """Returns the parameters' types, read off the module's text."""
  header = re.search(r'func\.func public @main\((.*?)\) -> ',
                     lowered.as_text('stablehlo')).group(1)
  return re.findall(r'%arg\d+: (tensor<[^>]*>|!stablehlo\.token)', header)


def raw_compile(lowered, num_devices=1):
  """Compiles a lowered function's module, and only that, on jaxlib's client."""
  backend = xla_bridge.get_backend('cpu')
  devices = backend.devices()[:num_devices]
  options = compiler.get_compile_options(
      num_replicas=1, num_partitions=num_devices,
      device_assignment=np.array([[d.id for d in devices]]))
  options.executable_build_options.use_spmd_partitioning = num_devices > 1
  code = mlir.module_to_bytecode(lowered.compiler_ir('stablehlo'))
  callbacks = lowered._lowering.compile_args['host_callbacks']
  kwargs = dict(host_callbacks=callbacks) if callbacks else {}
  if not hasattr(backend, 'compile_and_load'):
    return backend.compile(code, options, **kwargs)
  device_list = getattr(xc, 'DeviceList', None) or xc._xla.DeviceList
  load = functools.partial(
      backend.compile_and_load, executable_devices=device_list(tuple(devices)),
      compile_options=options, **kwargs)
  try:
    return load(code)
  except TypeError:  # with callbacks, newer jaxlibs want the module itself
    return load(lowered.compiler_ir('stablehlo'))


def raw_compile_text(text):
  """Compiles a module's text on jaxlib's client, for one device."""
  backend = xla_bridge.get_backend('cpu')
  options = compiler.get_compile_options(num_replicas=1, num_partitions=1)
  if not hasattr(backend, 'compile_and_load'):
    return backend.compile(text, options)
  device_list = getattr(xc, 'DeviceList', None) or xc._xla.DeviceList
  return backend.compile_and_load(
      text.encode(), device_list(tuple(backend.devices()[:1])), options)


def reloaded(compiled):
  """Stores an executable, and loads it."""
  load = serialize_executable.deserialize_and_load
  options = {}
  if 'execution_devices' in inspect.signature(load).parameters:
    options['execution_devices'] = jax.devices()[:1]
  return load(*serialize_executable.serialize(compiled), **options)


def put_copy(value):
  # Older jaxlibs share a NumPy array's memory where it happens to be aligned,
  # and the raw client writes a result into what is donated.
  if isinstance(value, np.ndarray):
    value = value.copy()
  return jax.device_put(value)


def raw_execute(executable, values, with_tokens=False, put=put_copy):
  """Executes with `values` as buffers; returns the buffers of each result."""
  buffers = [put(v) for v in values]
  results = executable.execute_sharded(buffers, with_tokens=with_tokens)
  return results.disassemble_into_single_device_arrays()


def raw_call(lowered, *args, **kwargs):
  """Runs a lowered function on the raw client; returns its flat outputs."""
  executable = raw_compile(lowered)
  effects = any(r.kind == 'token' for r in lowered.result_map)
  results = raw_execute(executable, lowered.parameter_values(*args, **kwargs),
                        with_tokens=effects)
  return [np.asarray(s) for r, (s,) in zip(lowered.result_map, results)
          if r.kind == 'output']


def data(x):
  """Returns an output of a function as the raw client returns it."""
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key_data(x)
  return x


class Boxed:
  """A pytree node of the user's own."""

  def __init__(self, a, b):
    self.a, self.b = a, b

jax.tree_util.register_pytree_with_keys(
    Boxed, lambda v: (((jax.tree_util.GetAttrKey('a'), v.a),
                       (jax.tree_util.GetAttrKey('b'), v.b)), None),
    lambda _, children: Boxed(*children))


def mlp_loss(params, batch, unused):
  hidden = jnp.tanh(batch['x'] @ params['w1'] + params['b1'][None])
  return jnp.sum((hidden @ params['w2'] - batch['y']) ** 2)


def nested(x):
  """A pytree with Nones, an empty tuple and unused leaves."""
  return {'w': x, 'none': None, 'list': [x + 1, (), x + 2], 'unused': x}

W = dict(w1=np.ones((3, 5), np.float32), b1=np.ones(5, np.float32),
         w2=np.ones((5, 2), np.float32), steps=np.float32(3))
BATCH = dict(x=np.ones((2, 3), np.float32), y=np.ones((2, 2), np.float32),
             mask=np.ones(2, bool))

# name: function, options of jit, args, kwargs, expected kept_var_idx
CASES = dict(
    second_of_three=(lambda a, b, c: b * 2, {}, (X, Y, Z), {}, (1,)),
    last_only=(lambda a, b, c: c * 2, {}, (X, Y, Z), {}, (2,)),
    all_used=(lambda a, b: a + b, {}, (X, Y), {}, (0, 1)),
    none_used=(lambda a, b: jnp.ones(3), {}, (X, Y), {}, ()),
    no_arguments=(lambda: jnp.ones(3), {}, (), {}, ()),
    in_pytrees=(lambda t, n, u: t['w'] * t['list'][1 + 1], {},
                (nested(X), None, nested(Y)), {}, (1, 3)),
    custom_node=(lambda v, w: v.b - w.a, {}, (Boxed(X, Y), Boxed(X, Y)), {},
                 (1, 2)),
    gradient=(jax.grad(mlp_loss), {}, (W, BATCH, Z), {}, (0, 2, 3, 5, 6)),
    gradient_of_last=(jax.grad(lambda a, b, c: jnp.sum(a * 2 + c ** 2), 2), {},
                      (X, X, Y), {}, (2,)),
    static=(lambda n, a, b: b * n, dict(static_argnums=0), (7, X, Y), {}, (1,)),
    static_name=(lambda a, b, *, n: b * n, dict(static_argnames='n'), (X, Y),
                 dict(n=3), (1,)),
    keywords=(lambda a, *, k, u, z: a + k * z, {}, (X,), dict(z=Y, u=Z, k=X),
              (0, 1, 3)),
    positional_by_keyword=(lambda a, b: b + 1, {}, (), dict(b=Y, a=X), (1,)),
    donated=(lambda a, b, c: (c, b + 1), dict(donate_argnums=(0, 1)),
             (X, Y, Z), {}, (1, 2)),
    closed_over=(lambda a, b: b + Y, {}, (X, X), {}, (1,)),
    same_array_twice=(lambda a, b, c: a + c, {}, (X, X, X), {}, (0, 2)),
    passed_through=(lambda a, b, c: (c, a, c), {}, (X, Y, Z), {}, (0, 2)),
    keys=(lambda k, u, a: (jax.random.normal(k, (3,)), jax.random.split(k)), {},
          (jax.random.key(1), jax.random.key(2), X), {}, (0,)),
    raw_keys=(lambda u, k: jax.random.normal(k, (3,)), {},
              (X, jax.random.PRNGKey(1)), {}, (1,)),
    zero_size=(lambda a, u, b: (a, b + 1), {},
               (np.zeros((0, 3), np.float32), np.zeros((0,), np.int32), X), {},
               (0, 2)),
    keep_unused=(lambda a, b, c: b * 2, dict(keep_unused=True), (X, Y, Z), {},
                 (0, 1, 2)),
    inline=(lambda a, b: jax.jit(lambda u, v: v + 1, inline=True)(a, b),
            dict(inline=True), (X, Y), {}, (1,)),
    nested_jit=(lambda a, b: jax.jit(lambda u, v: (v, u + 1))(a, b)[0] * 2, {},
                (X, Y), {}, (1,)),
    scalars=(lambda a, i, f, b: jnp.where(b, f, i + 1.), {}, (X, 3, 2.5, True),
             {}, (1, 2, 3)),
    wide_numpy=(lambda a, b: b + 1, {}, (np.arange(3), np.arange(3.)), {},
                (1,)),
    while_loop=(lambda n, a, b: lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * b), (0, b))[1], {},
        (3, X, Y), {}, (0, 2)),
    cond=(lambda p, a, b, c: lax.cond(p, lambda: a, lambda: c), {},
          (True, X, Z, Y), {}, (0, 1, 3)),
    low_precision=(lambda a, b: b + 1, {},
                   (X, jnp.ones(3, jnp.bfloat16)), {}, (1,)),
    float0=(lambda a, b: b, {}, (np.zeros(2, jax.dtypes.float0), X), {}, (1,)),
    float0_kept=(lambda a, b: b, dict(keep_unused=True),
                 (np.zeros(2, jax.dtypes.float0), X), {}, (0, 1)),
)


def lower(name):
  f, options, args, kwargs, kept = CASES[name]
  jitted = jax.jit(f, **options)
  lowered = jitted.lower(*args, **kwargs)
  # As everywhere in jax.stages, what is static is not passed again.
  static = options.get('static_argnums')
  call_args = [a for i, a in enumerate(args) if i != static]
  call_kwargs = {k: v for k, v in kwargs.items()
                 if k != options.get('static_argnames')}
  return jitted, lowered, (args, kwargs), (call_args, call_kwargs), kept


@red(NO_SUCH_NAME, api_missing=True)
@jtu.with_config(jax_legacy_prng_key='allow')
class ParameterMapTest(jtu.JaxTestCase):

  @parameterized.named_parameters((n, n) for n in CASES)
  @jtu.ignore_warning(message='Some donated buffers were not usable')
  def test_raw_client(self, name):
    f, lowered, (args, kwargs), (call_args, call_kwargs), kept = lower(name)
    self.assertEqual(lowered.kept_var_idx, kept)
    self.assertLen(lowered.parameter_map, len(entry_types(lowered)))
    expected = [data(x) for x in jax.tree.leaves(f(*args, **kwargs))]
    got = raw_call(lowered, *call_args, **call_kwargs)
    self.assertLen(got, len(expected))
    for e, g in zip(expected, got):
      if isinstance(e, jax.Array):
        self.assertEqual(e.dtype, g.dtype)
      np.testing.assert_allclose(np.asarray(e, np.float64),
                                 np.asarray(g, np.float64), rtol=1e-5)

  @parameterized.named_parameters((n, n) for n in CASES)
  @jtu.ignore_warning(message='Some donated buffers were not usable')
  def test_compiled_has_the_same_map(self, name):
    _, lowered, _, (call_args, call_kwargs), kept = lower(name)
    compiled = lowered.compile()
    self.assertEqual(compiled.kept_var_idx, kept)
    self.assertEqual(compiled.parameter_map, lowered.parameter_map)
    self.assertEqual(compiled.result_map, lowered.result_map)
    for a, b in zip(compiled.parameter_values(*call_args, **call_kwargs),
                    lowered.parameter_values(*call_args, **call_kwargs),
                    strict=True):
      np.testing.assert_array_equal(a, b)

  @parameterized.named_parameters((n, n) for n in CASES)
  @jtu.ignore_warning(message='Some donated buffers were not usable')
  def test_paths_lead_to_the_arguments(self, name):
    _, lowered, _, (call_args, call_kwargs), _ = lower(name)
    scope = dict(args=call_args, kwargs=call_kwargs)
    leaves = jax.tree.leaves((tuple(call_args), call_kwargs))
    types = entry_types(lowered)
    for p in lowered.parameter_map:
      self.assertEqual(p.kind, 'argument')
      found = eval(p.path, {}, scope)  # pylint: disable=eval-used
      self.assertIs(found, leaves[p.arg_index])
      self.assertEqual(np.shape(found), p.aval.shape)
      dims = types[p.number][len('tensor<'):-1].split('x')[:-1]
      self.assertEqual(tuple(map(int, dims)), p.physical_aval.shape)

  def test_three_tensors_one_unused(self):
    # The example of pytorch/xla#8794: 3 and 3 parameters with keep_unused.
    def f(a, b, c):
      return jnp.sum(a + c ** 2)
    lowered = jax.jit(f).lower(X, Y, Y)
    self.assertLen(lowered.parameter_map, 2)
    self.assertEqual([p.path for p in lowered.parameter_map],
                     ['args[0]', 'args[2]'])
    self.assertEqual([p.name for p in lowered.parameter_map], ['a', 'c'])
    grad = jax.jit(jax.grad(f, argnums=2)).lower(X, Y, Y)
    self.assertLen(grad.parameter_map, 1)
    np.testing.assert_allclose(raw_call(grad, X, Y, Y)[0], 2 * Y)

  def test_all_arguments_is_one_too_many(self):
    # What a runtime without the map runs into.
    lowered = jax.jit(lambda a, b, c: a + c).lower(X, X, X)
    executable = raw_compile(lowered)
    with self.assertRaisesRegex(Exception, 'supplied 3.*expected 2'):
      raw_execute(executable, [X, X, X])
    (out,), = raw_execute(executable, lowered.parameter_values(X, X, X))
    np.testing.assert_array_equal(out, X + X)

  def test_values_are_not_copied(self):
    x, y = jnp.ones(3), jnp.zeros(3)
    lowered = jax.jit(lambda a, b: b + 1).lower(x, y)
    self.assertIs(lowered.parameter_values(x, y)[0], y)
    y = np.zeros(3, np.float32)
    self.assertIs(lowered.parameter_values(x, y)[0], y)

  def test_python_scalars_of_each_kind(self):
    args = (True, 2, 3., 4j)
    lowered = jax.jit(lambda a, b, c, d: (~a, b * 2, c * 2, d * 2)).lower(*args)
    values = lowered.parameter_values(*args)
    self.assertEqual([v.dtype.kind for v in values], ['b', 'i', 'f', 'c'])
    outs = raw_execute(raw_compile(lowered), values)
    self.assertEqual([out[0] for out in outs], [False, 4, 6., 8j])
    with self.assertRaisesRegex(TypeError, r'args\[3\]: expected c.*, got f'):
      lowered.parameter_values(True, 2, 3., 4.)

  def test_map_is_an_immutable_sequence(self):
    pmap = jax.jit(lambda a, b, c: a + c).lower(X, X, X).parameter_map
    self.assertIsInstance(pmap, jax.stages.ParameterMap)
    self.assertIsInstance(pmap[0], jax.stages.Parameter)
    self.assertEqual([p.number for p in pmap], [0, 1])
    self.assertEqual(pmap[-1], pmap[1])
    self.assertEqual(pmap[:1], (pmap[0],))
    self.assertIn(pmap[1], pmap)
    with self.assertRaisesRegex(IndexError, '2 entries.*got 2'):
      pmap[2]
    with self.assertRaises(TypeError):
      pmap[0] = pmap[1]
    with self.assertRaises(AttributeError):
      pmap[0].arg_index = 1
    self.assertIn("path='args[2]'", repr(pmap))
    self.assertEqual(hash(pmap), hash(
        jax.jit(lambda a, b, c: a + c).lower(X, X, X).parameter_map))
    self.assertNotEqual(
        pmap, jax.jit(lambda a, b, c: a + b).lower(X, X, X).parameter_map)

  def test_program_is_the_same(self):
    # Asking for the map must not touch what is lowered and run.
    f = jax.jit(lambda a, b, c: (c, a + 1), donate_argnums=0)
    before = f.lower(X, Y, Z).as_text()
    lowered = f.lower(X, Y, Z)
    _ = repr(lowered.parameter_map), repr(lowered.result_map)
    self.assertEqual(lowered.as_text(), before)
    c, a = lowered.compile()(X.copy(), Y, Z)
    np.testing.assert_array_equal(c, Z)
    np.testing.assert_array_equal(a, X + 1)


def random_tree(rng, leaves, depth=0):
  """Returns a random pytree; appends its arrays, in no order, to `leaves`."""
  kind = rng.choice(['leaf', 'leaf', 'none', 'tuple', 'dict'])
  if kind == 'none':
    return None
  if kind == 'leaf' or depth == 3:
    leaf = rng.rand(rng.randint(3), 2).astype(np.float32)
    leaves.append(leaf)
    return leaf
  children = [random_tree(rng, leaves, depth + 1)
              for _ in range(rng.randint(4))]
  if kind == 'tuple':
    return tuple(children)
  return {f'k{rng.randint(1000)}': c for c in children}


class RandomProgramTest(jtu.JaxTestCase):

  @red(NO_SUCH_NAME, api_missing=True)
  @parameterized.parameters(range(12))
  @jtu.ignore_warning(message='Some donated buffers were not usable')
  def test_random_program(self, seed):
    # Random pytrees of which a random part is read, returned as it is, or
    # donated. What is expected is worked out here, from the leaves alone.
    rng = np.random.RandomState(seed)
    args = tuple(random_tree(rng, []) for _ in range(1 + rng.randint(4)))
    kwargs = {f'kw{i}': random_tree(rng, []) for i in range(rng.randint(3))}
    leaves = jax.tree.leaves((args, kwargs))
    read = [bool(rng.randint(2)) for _ in leaves]
    returned = [bool(rng.randint(2)) and r for r in read]
    nested = rng.randint(2)
    def body(flat):
      total = sum((jnp.sum(x) for x, r in zip(flat, read) if r), 0.)
      return total, [x for x, r in zip(flat, returned) if r]
    def f(*args, **kwargs):
      run = jax.jit(body) if nested else body
      return run(jax.tree.leaves((args, kwargs)))
    donated = tuple(i for i in range(len(args)) if rng.randint(3) == 0)
    lowered = jax.jit(f, donate_argnums=donated).lower(*args, **kwargs)
    kept = tuple(i for i, r in enumerate(read) if r)
    self.assertEqual(lowered.kept_var_idx, kept)
    values = lowered.parameter_values(*args, **kwargs)
    self.assertEqual([id(v) for v in values], [id(leaves[i]) for i in kept])
    num_donated = len(jax.tree.leaves([args[i] for i in donated]))
    first_donated = [len(jax.tree.leaves(args[:i])) for i in donated]
    may = {j for i, n in zip(donated, first_donated)
           for j in range(n, n + len(jax.tree.leaves(args[i])))}
    self.assertLen(may, num_donated)
    for p in lowered.parameter_map:
      self.assertTrue(p.arg_index in may or not p.donated)
    results = lowered.result_map
    self.assertEqual(
        [r.forwarded_from for r in results],
        [None] + [kept.index(i) for i, r in enumerate(returned) if r])
    for r in results:
      if r.aliases is not None:
        self.assertTrue(lowered.parameter_map[r.aliases].donated)
        self.assertEqual(lowered.parameter_map[r.aliases].aval.shape,
                         r.aval.shape)
    total, *out = raw_call(lowered, *args, **kwargs)
    np.testing.assert_allclose(
        total, sum(x.sum() for x, r in zip(leaves, read) if r), rtol=1e-5)
    for x, o in zip([x for x, r in zip(leaves, returned) if r], out,
                    strict=True):
      np.testing.assert_array_equal(x, o)


@red(NO_SUCH_NAME, api_missing=True)
class ResultMapTest(jtu.JaxTestCase):

  def test_forwarded(self):
    inner = jax.jit(lambda u, v: (v, u + 1, u))
    def f(a, b, c):
      return {'x': inner(a, c), 'y': c, 'z': b * 2}
    lowered = jax.jit(f).lower(X, Y, Z)
    results = lowered.result_map
    self.assertEqual([r.path for r in results],
                     ["result['x'][0]", "result['x'][1]", "result['x'][2]",
                      "result['y']", "result['z']"])
    self.assertEqual([r.out_index for r in results], [0, 1, 2, 3, 4])
    self.assertEqual([r.forwarded_from for r in results],
                     [2, None, 0, 2, None])
    values = lowered.parameter_values(X, Y, Z)
    outs = raw_call(lowered, X, Y, Z)
    for r in results:
      if r.forwarded_from is not None:
        np.testing.assert_array_equal(outs[r.number], values[r.forwarded_from])

  def test_forwarded_counts_parameters(self):
    # Parameter 0 is the second argument: the numbers must not be mixed up.
    result, = jax.jit(lambda a, b: b).lower(X, Y).result_map
    self.assertEqual(result.forwarded_from, 0)

  def test_equal_to_a_parameter_but_computed(self):
    result, = jax.jit(lambda a: a * 1 + 0).lower(X).result_map
    self.assertIsNone(result.forwarded_from)

  @parameterized.named_parameters(('lowered', False), ('compiled', True))
  def test_donated(self, compile_it):
    def f(a, b, c, d):
      return a[:2], d * 2, b + 1
    lowered = jax.jit(f, donate_argnums=(1, 3)).lower(
        X, Y, X, np.arange(3, dtype=np.float32))
    stage = lowered.compile() if compile_it else lowered
    self.assertEqual(stage.kept_var_idx, (0, 1, 3))
    self.assertEqual([p.donated for p in stage.parameter_map],
                     [False, True, True])
    self.assertEqual([r.aliases for r in stage.result_map], [None, 2, 1])

  def test_unusable_donation_is_no_donation(self):
    with self.assertWarnsRegex(UserWarning, 'donated buffers were not usable'):
      lowered = jax.jit(lambda a: a[:2], donate_argnums=0).lower(X)
    self.assertFalse(lowered.parameter_map[0].donated)
    self.assertIsNone(lowered.result_map[0].aliases)

  def test_donors_that_xla_pairs(self):
    # On several devices JAX leaves the pairing to XLA: known once compiled.
    if jax.device_count() < 2:
      self.skipTest('needs 2 devices')
    mesh = Mesh(np.array(jax.devices()[:2]), 'i')
    x = jax.device_put(np.arange(4.), NamedSharding(mesh, P('i')))
    lowered = jax.jit(lambda a, b: b + 1, donate_argnums=1).lower(x, x)
    self.assertTrue(lowered.parameter_map[0].donated)
    self.assertIsNone(lowered.result_map[0].aliases)
    compiled = lowered.compile()
    self.assertTrue(compiled.parameter_map[0].donated)
    self.assertEqual(compiled.result_map[0].aliases, 0)

  def test_many_aliases_of_a_compiled(self):
    n = 12
    lowered = jax.jit(lambda u, *a: [x + 1 for x in a[::-1]],
                      donate_argnums=tuple(range(1, n + 1))).lower(
        X, *[np.zeros(i + 1, np.float32) for i in range(n)])
    compiled = lowered.compile()
    expected = list(range(n))[::-1]
    self.assertEqual([r.aliases for r in lowered.result_map], expected)
    self.assertEqual([r.aliases for r in compiled.result_map], expected)


@red(NO_SUCH_NAME, api_missing=True)
class NotArgumentsTest(jtu.JaxTestCase):
  """Parameters that the caller doesn't pass."""

  def test_token(self):
    seen = []
    def f(a, b):
      io_callback(lambda v: seen.append(np.asarray(v)), None, b, ordered=True)
      return b * 2
    lowered = jax.jit(f).lower(X, Y)
    self.assertEqual([p.kind for p in lowered.parameter_map],
                     ['token', 'argument'])
    self.assertEqual([r.kind for r in lowered.result_map],
                     ['token', 'output'])
    self.assertEqual(lowered.kept_var_idx, (1,))
    self.assertEqual(lowered.parameter_map[1].arg_index, 1)
    self.assertEqual(lowered.result_map[1].out_index, 0)
    self.assertEqual(entry_types(lowered)[0], '!stablehlo.token')
    self.assertEqual(lowered.parameter_map[0].physical_aval.shape, (0,))
    out, = raw_call(lowered, X, Y)
    np.testing.assert_array_equal(out, Y * 2)
    self.assertLen(seen, 1)
    np.testing.assert_array_equal(seen[0], Y)

  def test_token_and_donation(self):
    def f(a, b):
      io_callback(lambda v: None, None, a, ordered=True)
      return a, b + 1
    lowered = jax.jit(f, donate_argnums=1).lower(X, Z)
    self.assertEqual([r.aliases for r in lowered.result_map], [None, None, 2])
    self.assertEqual([r.forwarded_from for r in lowered.result_map],
                     [None, 1, None])

  @parameterized.named_parameters(('x32', False), ('x64', True))
  def test_dimension_variable(self, x64):
    with config.enable_x64(x64):
      n, m = export.symbolic_shape('n, m', constraints=['n >= 2'])
      spec = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)
      f = lambda a, u, b: a.shape[0] * b + jnp.sum(a)
      lowered = jax.jit(f).lower(spec(n, m), spec(3), spec(2 * m))
      self.assertEqual([(p.kind, p.name) for p in lowered.parameter_map],
                       [('dimension', 'm'), ('dimension', 'n'),
                        ('argument', 'a'), ('argument', 'u'),
                        ('argument', 'b')])
      self.assertEqual(entry_types(lowered)[0],
                       'tensor<i64>' if x64 else 'tensor<i32>')
      self.assertEqual(lowered.parameter_map[0].aval.dtype,
                       np.int64 if x64 else np.int32)
      # With symbolic shapes JAX keeps every argument.
      self.assertEqual(lowered.kept_var_idx, (0, 1, 2))
      args = np.ones((3, 2), np.float32), X[:3], Y
      values = lowered.parameter_values(*args)
      self.assertEqual([int(v) for v in values[:2]], [2, 3])
      with self.assertRaisesRegex(TypeError, r'args\[2\]\.shape\[0\]'):
        lowered.parameter_values(args[0], args[1], Y[:3])
      with self.assertRaisesRegex(TypeError, 'n >= 2'):
        lowered.parameter_values(args[0][:1], args[1], Y)
      with self.assertRaisesRegex(TypeError, r'args\[0\]: expected.*\[n,m\]'):
        lowered.parameter_values(X, args[1], Y)

  def test_platform_index(self):
    lowered = jax.jit(lambda a, b: jnp.sin(b)).trace(X, Y).lower(
        lowering_platforms=('cpu', 'tpu'))
    self.assertEqual([p.kind for p in lowered.parameter_map],
                     ['platform_index', 'argument'])
    with self.assertRaisesRegex(ValueError, r'values\(args, kwargs, platform='):
      lowered.parameter_values(X, Y)
    with self.assertRaisesRegex(ValueError, "expected a platform.*'cuda'"):
      lowered.parameter_map.values((X, Y), platform='cuda')
    for i, platform in enumerate(('cpu', 'tpu')):
      index, y = lowered.parameter_map.values((X, Y), platform=platform)
      self.assertEqual((int(index), index.dtype), (i, np.int32))
      self.assertIs(y, Y)

  def test_mutable_arrays(self):
    new = core.mutable_array if hasattr(core, 'mutable_array') else jax.new_ref
    closed, passed = new(jnp.asarray(X)), new(jnp.asarray(Y))
    def f(r, u, b):
      closed[...] += b
      r[...] *= 2
      return closed[...] + 1
    lowered = jax.jit(f).lower(passed, X, Y)
    self.assertEqual([p.kind for p in lowered.parameter_map],
                     ['argument', 'argument', 'ref'])
    self.assertEqual(lowered.kept_var_idx, (0, 2))
    self.assertIs(lowered.parameter_map[2].value, closed)
    self.assertEqual([(r.kind, r.updates) for r in lowered.result_map],
                     [('output', None), ('ref', 0), ('ref', 2)])
    self.assertEqual([r.aliases for r in lowered.result_map], [None, 0, 2])
    executable = raw_compile(lowered)
    values = lowered.parameter_values(passed, X, Y)
    (out,), (r,), (c,) = raw_execute(executable, values)
    np.testing.assert_array_equal(out, X + Y + 1)
    np.testing.assert_array_equal(r, Y * 2)
    np.testing.assert_array_equal(c, X + Y)
    np.testing.assert_array_equal(closed[...], X)  # feeding changed nothing

  def test_captured_from_an_enclosing_trace(self):
    maps = []
    def outer(a):
      maps.append(jax.jit(lambda b, c: c + a).lower(X, Y))
      return a
    jax.jit(outer)(X)
    lowered, = maps
    self.assertEqual([p.kind for p in lowered.parameter_map],
                     ['captured', 'argument'])
    self.assertEqual(lowered.kept_var_idx, (1,))
    self.assertEqual(lowered.parameter_map[1].path, 'args[1]')
    with self.assertRaisesRegex(ValueError, 'enclosing trace'):
      lowered.parameter_values(X, Y)

  @parameterized.named_parameters(('off', False), ('on', True))
  def test_hoisted_constants(self, hoist):
    # Bases that can't hoist have the constant in the module, as with "off".
    hoisted = hoist and CAN_HOIST
    big = jnp.asarray(Y)
    with hoisting(hoist) as lowering_parameters:
      lowered = jax.jit(lambda a, b, c: c * big, donate_argnums=2).trace(
          X, X, X).lower(_private_parameters=lowering_parameters)
      self.assertEqual([p.kind for p in lowered.parameter_map],
                       ['constant'] * hoisted + ['argument'])
      self.assertEqual(lowered.kept_var_idx, (2,))
      self.assertEqual(lowered.parameter_map[-1].path, 'args[2]')
      self.assertEqual(lowered.parameter_map[-1].name, 'c')
      self.assertEqual(lowered.result_map[0].aliases, int(hoisted))
      if hoisted:
        np.testing.assert_array_equal(lowered.parameter_map[0].value, Y)
      self.assertLen(entry_types(lowered), 1 + hoisted)
      np.testing.assert_array_equal(raw_call(lowered, X, X, X)[0], X * Y)
      self.assertEqual(lowered.compile().parameter_map, lowered.parameter_map)


class HighTypesTest(jtu.JaxTestCase):

  @red(NO_SUCH_NAME, api_missing=True)
  def test_arguments_of_a_type_of_ones_own(self):
    class Pair:
      def __init__(self, floats, ints):
        self.floats, self.ints = floats, ints

    if hijax is None:  # on older bases, such a type is a pytree node
      jax.tree_util.register_pytree_node(
          Pair, lambda v: ((v.floats, v.ints), None), lambda _, c: Pair(*c))
    else:
      class PairType(hijax.HiType):
        def __hash__(self):
          return 0
        def __eq__(self, other):
          return type(other) is PairType
        def lo_ty(self):
          return [core.ShapedArray((2, 3), np.dtype(np.float32)),
                  core.ShapedArray((2,), np.dtype(np.int32))]
        def lower_val(self, value):
          return [value.floats, value.ints]
        def raise_val(self, floats, ints):
          return Pair(floats, ints)
      hijax.register_hitype(Pair, lambda _: PairType())

    pairs = [Pair(jnp.full((2, 3), i, np.float32), jnp.full(2, i, np.int32))
             for i in range(2)]
    lowered = jax.jit(lambda u, x, p: (p, x * 2)).lower(pairs[0], X, pairs[1])
    self.assertEqual(lowered.kept_var_idx, (2, 3, 4))
    self.assertEqual([p.path[:7] for p in lowered.parameter_map],
                     ['args[1]', 'args[2]', 'args[2]'])
    self.assertEqual([r.forwarded_from for r in lowered.result_map],
                     [1, 2, None])
    values = lowered.parameter_values(pairs[0], X, pairs[1])
    self.assertIs(values[1], pairs[1].floats)
    floats, ints, doubled = raw_call(lowered, pairs[0], X, pairs[1])
    np.testing.assert_array_equal(floats, pairs[1].floats)
    np.testing.assert_array_equal(ints, pairs[1].ints)
    np.testing.assert_array_equal(doubled, X * 2)
    with self.assertRaisesRegex(TypeError, r'args\[1\].*: expected float32'):
      lowered.parameter_values(pairs[0], X[:2], pairs[1])


class MultiDeviceTest(jtu.JaxTestCase):

  @red(NO_SUCH_NAME, api_missing=True)
  @parameterized.named_parameters(
      ('auto_1d', (8,), False), ('auto_2d', (4, 2), False),
      ('shard_map_1d', (8,), True), ('shard_map_2d', (4, 2), True))
  def test_sharded(self, shape, manual):
    if jax.device_count() < 8:
      self.skipTest('needs 8 devices')
    names = ('x', 'y')[:len(shape)]
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(shape), names)
    spec = P(*names)
    global_shape = (8, 6) if len(shape) == 2 else (16,)
    sharding = NamedSharding(mesh, spec)
    a = np.arange(np.prod(global_shape), dtype=np.float32)
    a = a.reshape(global_shape)
    def f(u, p, w):
      return p['k'] * 2 + (lax.psum(jnp.sum(w), names) if manual
                           else jnp.sum(w))
    fun = f if not manual else shard_map(
        f, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec)
    args = jax.tree.map(lambda x: jax.device_put(x, sharding),
                        (a, dict(j=a, k=a), a + 1))
    lowered = jax.jit(fun, out_shardings=sharding).lower(*args)
    self.assertEqual(lowered.kept_var_idx, (2, 3))
    self.assertEqual([p.path for p in lowered.parameter_map],
                     ["args[1]['k']", 'args[2]'])
    self.assertLen(entry_types(lowered), 2)
    executable = raw_compile(lowered, 8)
    out, = raw_execute(executable, lowered.parameter_values(*args),
                       put=lambda x: x)
    expected = a * 2 + np.sum(a + 1)
    for shard, device in zip(out, jax.devices()):
      index = sharding.devices_indices_map(global_shape)[device]
      np.testing.assert_allclose(shard, expected[index], rtol=1e-6)


@red(NO_SUCH_NAME, api_missing=True)
@jtu.with_config(jax_legacy_prng_key='allow')
class ExportTest(jtu.JaxTestCase):

  @parameterized.named_parameters(
      (n, n) for n in CASES if n not in ('keys', 'static', 'static_name',
                                         'custom_node', 'float0',
                                         'float0_kept'))
  @jtu.ignore_warning(message='Some donated buffers were not usable')
  def test_agrees_with_export(self, name):
    f, options, args, kwargs, kept = CASES[name]
    jitted = jax.jit(f, **options)
    exported = export.export(jitted)(*args, **kwargs)
    lowered = jitted.lower(*args, **kwargs)
    self.assertEqual(lowered.kept_var_idx, exported.module_kept_var_idx)
    self.assertEqual(lowered.kept_var_idx, kept)

  def test_called_export(self):
    # An exported module inside another function: its dimension variables are
    # its own and no parameters here.
    n, = export.symbolic_shape('n')
    exported = export.export(jax.jit(lambda a, b: b * b.shape[0]))(
        jax.ShapeDtypeStruct((n,), np.float32),
        jax.ShapeDtypeStruct((n,), np.float32))
    lowered = jax.jit(lambda a, b, c: exported.call(a, c)).lower(X, Y, Y)
    self.assertEqual([p.path for p in lowered.parameter_map],
                     ['args[0]', 'args[2]'])
    compiled = lowered.compile()
    self.assertEqual(compiled.parameter_map, lowered.parameter_map)


@red(NO_SUCH_NAME, api_missing=True)
class X64Test(jtu.JaxTestCase):

  def test_x64(self):
    with config.enable_x64(True):
      x, y = np.arange(3), np.arange(3.)
      lowered = jax.jit(lambda i, u, f, s: i.astype(f.dtype) * f * s).lower(
          x, x, y, 2.5)
      self.assertEqual(lowered.kept_var_idx, (0, 2, 3))
      values = lowered.parameter_values(x, x, y, 2.5)
      self.assertEqual([v.dtype for v in values],
                       [np.int64, np.float64, np.float64])
      np.testing.assert_allclose(raw_call(lowered, x, x, y, 2.5)[0],
                                 x * y * 2.5)
      with self.assertRaisesRegex(TypeError,
                                  r'args\[2\]: expected float64\[3\], got '
                                  r'float32\[3\]'):
        lowered.parameter_values(x, x, y.astype(np.float32), 2.5)
    # The module doesn't change with the flag.
    self.assertEqual(lowered.parameter_values(x, x, y, 2.5)[1].dtype,
                     np.float64)

  def test_64_bits_taken_as_32(self):
    x = np.arange(3.)  # float64
    lowered = jax.jit(lambda a, b: b * 2).lower(x, x)
    value, = lowered.parameter_values(x, x)
    self.assertEqual(value.dtype, np.float32)


@red(NO_SUCH_NAME, api_missing=True)
class BadInputTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.lowered = jax.jit(lambda a, p, *, k: a + p['w'] + k).lower(
        X, {'w': X, 'v': Z}, k=X)

  @parameterized.named_parameters(('lowered', False), ('compiled', True))
  def test_error_names_the_api(self, compile_it):
    stage = self.lowered.compile() if compile_it else self.lowered
    name = type(stage).__name__
    with self.assertRaisesRegex(
        TypeError, rf'^jax\.stages\.{name}\.parameter_values: '):
      stage.parameter_values(X)

  @parameterized.named_parameters(
      ('missing_positional', (X,), dict(k=X), r'at args'),
      ('one_too_many', (X, {'w': X, 'v': Z}, X), dict(k=X), r'at args'),
      ('missing_keyword', (X, {'w': X, 'v': Z}), {}, r'at kwargs'),
      ('unknown_keyword', (X, {'w': X, 'v': Z}), dict(j=X), r'at kwargs'),
      ('missing_unused_leaf', (X, {'w': X}), dict(k=X), r'at args\[1\]'),
      ('none_for_a_leaf', (X, {'w': None, 'v': Z}), dict(k=X),
       r"at args\[1\]\['w'\]"),
      ('list_for_an_array', ([1., 2.], {'w': X, 'v': Z}), dict(k=X),
       r'at args\[0\]'))
  def test_wrong_tree(self, args, kwargs, where):
    with self.assertRaisesRegex(TypeError, rf'structure.*\s+{where}'):
      self.lowered.parameter_values(*args, **kwargs)

  @parameterized.named_parameters(
      ('dtype', (X.astype(np.int32), {'w': X, 'v': Z}), X,
       r'args\[0\]: expected float32\[4\], got int32\[4\]'),
      ('shape', (X, {'w': X[:3], 'v': Z}), X,
       r"args\[1\]\['w'\]: expected float32\[4\], got float32\[3\]"),
      ('rank', (X, {'w': X, 'v': Z}), X[None],
       r"kwargs\['k'\]: expected float32\[4\], got float32\[1,4\]"),
      ('unused', (X, {'w': X, 'v': X}), X,
       r"args\[1\]\['v'\]: expected int32\[2,3\], got float32\[4\]"),
      ('scalar', (X, {'w': 3, 'v': Z}), X,
       r"args\[1\]\['w'\]: expected float32\[4\], got int32\[\]"),
      ('string', (X, {'w': 'w', 'v': Z}), X,
       r"args\[1\]\['w'\]: expected float32\[4\], got a value of type str"),
      ('no_value', (X, {'w': jax.ShapeDtypeStruct((4,), np.float32), 'v': Z}),
       X, r"args\[1\]\['w'\]: .*got a value of type ShapeDtypeStruct"))
  def test_wrong_type(self, args, k, message):
    with self.assertRaisesRegex(TypeError, message):
      self.lowered.parameter_values(*args, k=k)

  def test_foreign_byte_order(self):
    ones = np.ones(4, X.dtype.newbyteorder())
    order = 'big' if sys.byteorder == 'little' else 'little'
    with self.assertRaisesRegex(
        TypeError, r'args\[0\]: expected float32\[4\], got '
        rf'{order}-endian float32\[4\]'):
      self.lowered.parameter_values(ones, {'w': X, 'v': Z}, k=X)
    values = self.lowered.parameter_values(
        ones.astype(np.float32), {'w': X, 'v': Z}, k=X)
    self.assertTrue(all(np.dtype(v.dtype).isnative for v in values))

  def test_tracer(self):
    with self.assertRaisesRegex(TypeError, r'args\[0\]: .*got a value of type'):
      jax.jit(lambda x: self.lowered.parameter_values(
          x, {'w': X, 'v': Z}, k=X))(X)

  def test_many_errors_are_counted(self):
    lowered = jax.jit(lambda *a: a[0]).lower(*[X] * 20)
    with self.assertRaisesRegex(TypeError, 'and 15 more'):
      lowered.parameter_values(*[Y[:2]] * 20)

  def test_scalar_kinds(self):
    lowered = jax.jit(lambda a: a + 1).lower(2)
    self.assertEqual(lowered.parameter_values(3)[0].dtype, np.int32)
    with self.assertRaisesRegex(TypeError, r'expected int32\[\], got float32'):
      lowered.parameter_values(3.)
    with self.assertRaisesRegex(TypeError, r'expected int32\[\], got bool'):
      lowered.parameter_values(True)

  def test_wrong_key(self):
    lowered = jax.jit(lambda k: jax.random.bits(k)).lower(jax.random.key(0))
    with self.assertRaisesRegex(TypeError, r'expected key<fry>.*, got uint32'):
      lowered.parameter_values(np.zeros(2, np.uint32))
    with self.assertRaisesRegex(TypeError, r'expected key<fry>.*, got key<rb'):
      lowered.parameter_values(jax.random.key(0, impl='rbg'))

  def test_loaded_from_disk(self):
    loaded = reloaded(self.lowered.compile())
    args, kwargs = (X, {'w': X, 'v': Z}), {'k': X}
    np.testing.assert_array_equal(loaded(*args, **kwargs), 3 * X)
    self.assertEqual(loaded.kept_var_idx, self.lowered.kept_var_idx)
    self.assertEqual(repr(loaded.parameter_map),
                     repr(self.lowered.parameter_map))
    (out,), = raw_execute(loaded.runtime_executable(),
                          loaded.parameter_values(*args, **kwargs))
    np.testing.assert_array_equal(out, 3 * X)
    with self.assertRaisesRegex(
        TypeError, r'(?s)jax\.stages\.Compiled\.parameter_values: .*args\[0\]'):
      loaded.parameter_values(Z, {'w': X, 'v': Z}, k=X)

  @parameterized.named_parameters(
      ('donated', dict(donate_argnums=(0, 2)), lambda a, b, c=Y: (a + c, b[1]),
       (X, (Y, Z), Y + 1), {}),
      ('static', dict(static_argnums=1), lambda a, n, b: (a * n, -b),
       (X, 3, Y), {}),
      ('defaulted', {}, lambda a, b=2., *, k, unused=None: (a + b, k),
       (X,), dict(k=Y)),
      ('dead_branch', {}, lambda a, b, c: (
          lax.cond(True, lambda: a, lambda: b), c + 1), (X, Y, Y + 2), {}),
      ('dead_in_jit', {}, lambda a, b, c: jax.jit(
          lambda a, b: a * 2)(a, b) + c, (X, Z, Y), {}))
  def test_from_each_stage(self, options, f, args, kwargs):
    jitted = jax.jit(f, **options)
    call_args = args
    if 'static_argnums' in options:
      call_args = args[:1] + args[2:]
    expected = [np.asarray(x) for x in jax.tree.leaves(f(*args, **kwargs))]
    lowered = jitted.lower(*args, **kwargs)
    compiled = lowered.compile()
    for executable in (compiled, reloaded(compiled)):
      self.assertEqual(repr(executable.parameter_map),
                       repr(lowered.parameter_map))
      results = raw_execute(executable.runtime_executable(),
                            executable.parameter_values(*call_args, **kwargs))
      for (got,), want in zip(results, expected, strict=True):
        np.testing.assert_allclose(got, want)
    if 'static_argnums' in options:
      return  # jax.export takes none
    exported = export.deserialize(
        export.export(jitted)(*args, **kwargs).serialize())
    self.assertEqual([p.path for p in exported.parameter_map],
                     [p.path for p in lowered.parameter_map])
    results = raw_execute(raw_compile_text(exported.mlir_module()),
                          exported.parameter_values(*args, **kwargs))
    for (got,), want in zip(results, expected, strict=True):
      np.testing.assert_allclose(got, want)

  def test_exported_for_several_platforms(self):
    def f(x, unused):
      return lax.platform_dependent(x, cpu=lambda x: x + 1,
                                    default=lambda x: x + 2)
    exported = export.export(jax.jit(f), platforms=('tpu', 'cpu'))(X, Z)
    self.assertEqual([p.kind for p in exported.parameter_map],
                     ['platform_index', 'argument'])
    values = exported.parameter_map.values((X, Z), platform='cpu')
    self.assertEqual(int(values[0]), 1)
    np.testing.assert_array_equal(values[1], X)
    with self.assertRaisesRegex(
        ValueError, r'jax\.export\.Exported\.parameter_values: .*platform='):
      exported.parameter_values(X, Z)

  def test_pmap_is_refused_or_right(self):
    # pmap's own lowering, until it became jit's, keeps no record of arguments.
    n = jax.device_count()
    x = np.arange(n * 2, dtype=np.float32).reshape(n, 2)
    lowered = jax.pmap(lambda a, b: b + 1).lower(x, x)
    if type(lowered._lowering).__name__ == 'MeshComputation':
      self.assertEqual(lowered.kept_var_idx, (1,))
      self.assertEqual(lowered.parameter_map[0].path, 'args[1]')
    else:
      with self.assertRaisesRegex(ValueError, 'expected a function lowered by'):
        _ = lowered.parameter_map
      compiled = lowered.compile()  # goes on as before
      np.testing.assert_array_equal(compiled(x, x), x + 1)
      with self.assertRaisesRegex(ValueError, 'expected a function lowered by'):
        _ = compiled.parameter_map
