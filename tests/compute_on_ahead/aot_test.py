# SPDX-License-Identifier: Apache-2.0
"""compute_on ahead of time: every path does what the call does (jax#27825)."""

import functools
import gc
import inspect
import threading
import traceback
import weakref

from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import config
from jax._src import test_util as jtu
from jax.experimental import serialize_executable
import jax.numpy as jnp
import numpy as np
from testing.compute_on_forms import FORMS, context_form
from testing.red import red
from testing.sharding import eight_devices, shard_map

# What pristine JAX says.
NO_COMPUTE_TYPE = ('^AssertionError: .*the compute type is not in the lowered '
                   'text')
NO_SUCH_METHOD = "^AttributeError: 'function' object has no attribute"
NO_LOWER = "^AttributeError: 'function' object has no attribute 'lower'"
WRONG_COMPUTE_TYPE = ('^AssertionError: False != True : whether the text has '
                      'a compute type')

P = jax.sharding.PartitionSpec

config.parse_flags_with_absl()
# What was read from a cache is written without its code, but for another patch.
config.update('jax_enable_compilation_cache', False)
eight_devices()

MARK = '_xla_compute_type = "host"'


def by_platform(x):
  """Adds 1 where it is lowered for the host, more where it is not."""
  return lax.platform_dependent(
      x, cpu=lambda x: x + 1., tpu=lambda x: x + 20., cuda=lambda x: x + 300.)


def text_for(platform, jitted, *args, **kwargs):
  traced = jitted.trace(*args, **kwargs)
  return traced.lower(lowering_platforms=(platform,)).as_text()


def run_as_lowered_for(platform, jitted, *args):
  """Runs here what was lowered for another platform."""
  exported = export.export(
      jitted, platforms=(platform,),
      disabled_checks=[export.DisabledSafetyCheck.platform()])(*args)
  restored = export.deserialize(exported.serialize())
  return exported.mlir_module(), restored.call(*args)


class ComputeOnAotTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.x = np.arange(4, dtype=np.float32)

  def assertMarked(self, text):
    self.assertIn(MARK, text, 'the compute type is not in the lowered text')

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_lower_compile_call(self):
    for form in FORMS:
      host = form(jax.jit(by_platform))
      self.assertArraysEqual(host(self.x), self.x + 1)
      lowered = host.lower(self.x)
      self.assertMarked(lowered.as_text())
      self.assertArraysEqual(lowered.compile()(self.x), self.x + 1)

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  @parameterized.named_parameters(('_tpu', 'tpu'), ('_cuda', 'cuda'))
  def test_trace_lower_for_a_platform(self, platform):
    for form in FORMS:
      host = form(jax.jit(by_platform))
      self.assertMarked(text_for(platform, host, self.x))
      text, out = run_as_lowered_for(platform, host, self.x)
      self.assertMarked(text)
      self.assertArraysEqual(out, self.x + 1)

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_trace_lower_for_all_platforms(self):
    for form in FORMS:
      host = form(jax.jit(by_platform))
      platforms = ('cpu', 'tpu', 'cuda')
      traced = host.trace(self.x)
      self.assertMarked(traced.lower(lowering_platforms=platforms).as_text())
      exported = export.export(host, platforms=platforms)(self.x)
      restored = export.deserialize(exported.serialize())
      self.assertMarked(restored.mlir_module())
      self.assertArraysEqual(restored.call(self.x), self.x + 1)

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_serialize_executable(self):
    for form in FORMS:
      lowered = form(jax.jit(by_platform)).lower(self.x)
      self.assertMarked(lowered.as_text())
      stored = serialize_executable.serialize(lowered.compile())
      # Newer bases load on all devices unless they are told.
      load = serialize_executable.deserialize_and_load
      devices = {}
      if 'execution_devices' in inspect.signature(load).parameters:
        devices = {'execution_devices': jax.devices()[:1]}
      loaded = load(*stored, **devices)
      self.assertArraysEqual(loaded(jnp.asarray(self.x)), self.x + 1)

  @red('^AssertionError: 0 not greater than or equal to', bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_what_is_lowered_is_what_the_call_compiles(self):
    # Against the workaround in the report: compute_on inside jit.
    def f(x):
      return jnp.sin(x) * 2
    for form in FORMS:
      inside = jax.jit(form(f))
      marks = inside.lower(self.x).as_text().count(MARK)
      self.assertGreater(marks, 1)
      self.assertEqual(
          form(jax.jit(f)).lower(self.x).as_text().count('stablehlo.sine'), 1)
      self.assertGreaterEqual(
          form(jax.jit(f)).lower(self.x).as_text().count(MARK), marks)

  @red('^AssertionError: .None, None. has length of 2, expected 1',
       bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_eval_shape_and_clear_cache(self):
    traces = []
    @jax.jit
    def f(x):
      traces.append(None)
      return {'out': x[None]}
    for form in FORMS:
      del traces[:]
      host = form(f)
      shape = host.eval_shape(self.x)['out']
      self.assertEqual((shape.shape, shape.dtype), ((1, 4), jnp.float32))
      host(self.x)
      host.lower(self.x)
      self.assertLen(traces, 1)
      host.clear_cache()
      host(self.x)
      self.assertLen(traces, 2)

  @red("^AttributeError: 'function' object has no attribute 'clear_cache'",
       bases='<0.6', api_missing=True)
  @red('^AssertionError: .*is not an instance of', bases='>=0.6')
  def test_is_a_wrapped_function(self):
    @jax.jit
    def scaled(x, factor=2.):
      """Scales."""
      return x * factor
    for form in FORMS:
      host = form(scaled)
      self.assertIsInstance(host, jax.stages.Wrapped)
      for stage in ('lower', 'trace', 'eval_shape', 'clear_cache'):
        self.assertTrue(callable(getattr(host, stage)), stage)
      self.assertIs(host.__wrapped__, scaled)
      self.assertEqual(host.__name__, 'scaled')
      self.assertEqual(host.__qualname__, scaled.__qualname__)
      self.assertEqual(host.__doc__, 'Scales.')
      self.assertEqual(inspect.signature(host), inspect.signature(scaled))

  # 0.5.3 lowers without the compute type.
  @red(NO_COMPUTE_TYPE, bases='<0.6')
  # From 0.6.0 on there is no way to lower it.
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_decorator_and_method(self):
    for form in FORMS:
      @form
      @jax.jit
      def f(x):
        return x * 3
      self.assertMarked(f.lower(self.x).as_text())

      class Scale:
        factor = 3

        @form
        @functools.partial(jax.jit, static_argnums=0)
        def apply(self, x):
          return x * self.factor

        @form
        def apply_unjitted(self_or_x, x=2.):  # pylint: disable=no-self-argument
          return getattr(self_or_x, 'factor', self_or_x) * x

      self.assertArraysEqual(Scale().apply(self.x), self.x * 3)
      # An object without value equality is a static argument by identity.
      scale = Scale()
      lowered = Scale.apply.lower(scale, self.x)
      self.assertMarked(lowered.as_text())
      self.assertArraysEqual(lowered.compile()(self.x), self.x * 3)

  @red({
      '<0.11.1':
          r'^AssertionError: "compute_on\.\*no '
          r'\.lower\.\*jax\\\.jit\.\*jax\\\.jit\\\(plain\\\)" does not match '
          '"\'function\' object has no',
      '>=0.11.1':
          r"^AssertionError: Tuples differ: \('wrapped', None\) != \('plain', "
          r"'Doubles\.'\)\s+First differing element",
  })
  def test_unjitted_says_to_jit_first(self):
    def plain(x):
      """Doubles."""
      return x * 2
    for form in FORMS:
      host = form(plain)
      self.assertArraysEqual(host(self.x), self.x * 2)
      self.assertEqual((host.__name__, host.__doc__), ('plain', 'Doubles.'))
      self.assertIs(host.__wrapped__, plain)
      self.assertFalse(hasattr(host, 'lower'))
      self.assertNotIsInstance(host, jax.stages.Wrapped)
      for stage in ('lower', 'trace', 'eval_shape', 'clear_cache'):
        with self.assertRaisesRegex(
            AttributeError,
            rf'compute_on.*no .{stage}.*jax\.jit.*jax\.jit\(plain\)'):
          getattr(host, stage)

  def test_frames_are_hidden(self):
    def bad(x):
      raise FloatingPointError('of the user')
    for form in FORMS:
      for f in (jax.jit(form(bad)), jax.jit(form(jax.jit(bad)))):
        files = []
        with config.traceback_filtering('remove_frames'):
          try:
            f(self.x)
          except FloatingPointError as e:
            files = [t.filename for t in traceback.extract_tb(e.__traceback__)]
        self.assertEqual(files[-1], bad.__code__.co_filename)
        ours = [f for f in files if '/_src/compute_on_ahead/' in f]
        self.assertEqual(ours, [])

  # jax.pmap's stages, copied from it, ran outside of compute_on.
  @red(NO_LOWER, bases='>=0.6,<0.8', api_missing=True)
  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_COMPUTE_TYPE, bases='>=0.8,<0.11.1')
  def test_stages_that_are_not_of_jit(self):
    # jax.pmap's functions have stages, too, on most bases.
    x = np.ones((8, 2), np.float32)
    for form in FORMS:
      host = form(jax.pmap(lambda x: x + 1))
      self.assertArraysEqual(host(x), x + 1)
      if form is context_form:
        lowered = host.lower(x)
        self.assertMarked(lowered.as_text())
        self.assertArraysEqual(lowered.compile()(x), x + 1)

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red({
      '<0.11.1': NO_LOWER,
      '>=0.11.1':
          r'^ValueError: Non-hashable static arguments are not supported\. An '
          'error occurred while trying to',
  }, bases='>=0.6', api_missing=True)
  def test_static_arguments(self):
    def f(x, n, *, flag):
      return x * n if flag else x
    jitted = jax.jit(f, static_argnums=1, static_argnames='flag')
    for form in FORMS:
      host = form(jitted)
      self.assertArraysEqual(host(self.x, 3, flag=True), self.x * 3)
      self.assertArraysEqual(host(self.x, 5, flag=True), self.x * 5)
      self.assertArraysEqual(host(self.x, 5, flag=False), self.x)
      self.assertArraysEqual(
          jax.jit(lambda x: host(x, 3, flag=True))(self.x), self.x * 3)
      lowered = host.lower(self.x, 3, flag=True)
      self.assertMarked(lowered.as_text())
      self.assertArraysEqual(lowered.compile()(self.x), self.x * 3)

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_donated_arguments(self):
    jitted = jax.jit(lambda x, y: x + y, donate_argnums=0)
    for form in FORMS:
      host = form(jitted)
      x = jnp.arange(4.)
      lowered = host.lower(x, x)
      self.assertMarked(lowered.as_text())
      self.assertTrue(lowered.args_info[0][0].donated)
      self.assertFalse(lowered.args_info[0][1].donated)
      y = jnp.ones(4)
      self.assertArraysEqual(lowered.compile()(x, y), self.x + 1)
      self.assertTrue(x.is_deleted())
      x = jnp.arange(4.)
      self.assertArraysEqual(host(x, y), self.x + 1)
      self.assertTrue(x.is_deleted())
      self.assertFalse(y.is_deleted())

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_LOWER, bases='>=0.6', api_missing=True)
  def test_keyword_arguments_and_pytrees(self):
    def f(tree, *, scale):
      return {'sum': tree['a'] + tree['b'][0], 'scaled': scale * tree['a']}
    tree = {'a': self.x, 'b': [self.x * 2]}
    want = {'sum': self.x * 3, 'scaled': self.x * 5}
    for form in FORMS:
      host = form(jax.jit(f))
      self.assertAllClose(host(tree, scale=np.float32(5)), want)
      self.assertAllClose(
          jax.jit(lambda t: host(t, scale=np.float32(5)))(tree), want)
      lowered = host.lower(tree, scale=np.float32(5))
      self.assertMarked(lowered.as_text())
      self.assertAllClose(
          lowered.compile()(tree, scale=np.float32(5)), want)
      self.assertAllClose(form(f)(tree, scale=np.float32(5)), want)

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_shape_dtype_struct_and_unused_arguments(self):
    spec = jax.ShapeDtypeStruct((4,), jnp.float32)
    for form in FORMS:
      host = form(jax.jit(lambda x, unused: by_platform(x)))
      lowered = host.lower(spec, spec)
      self.assertMarked(lowered.as_text())
      self.assertArraysEqual(lowered.compile()(self.x, self.x), self.x + 1)

  @red(NO_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_shardings(self):
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:4]).reshape(2, 2), ('a', 'b'))
    sharding = jax.sharding.NamedSharding(mesh, P('a', 'b'))
    jitted = jax.jit(by_platform, in_shardings=sharding,
                     out_shardings=sharding)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    for form in FORMS:
      host = form(jitted)
      lowered = host.lower(x)
      self.assertMarked(lowered.as_text())
      for out in (host(x), lowered.compile()(x)):
        self.assertArraysEqual(out, x + 1)
        self.assertTrue(out.sharding.is_equivalent_to(sharding, 2))

  @red(NO_LOWER, bases='>=0.10.2', api_missing=True)
  def test_shardings_beside_compiler_options(self):
    # The options stay outside of the call that the base makes; the layouts
    # are that call's.
    devices = np.array(jax.devices()[:8])
    for mesh, spec in ((jax.sharding.Mesh(devices, ('a',)), P('a')),
                       (jax.sharding.Mesh(devices.reshape(2, 4), ('a', 'b')),
                        P('b'))):
      sharding = jax.sharding.NamedSharding(mesh, spec)
      x = np.arange(8, dtype=np.float32)
      jitted = jax.jit(lambda x, n: x * n, out_shardings=sharding,
                       static_argnums=1,
                       compiler_options={'xla_cpu_enable_fast_math': True})
      for form in FORMS:
        if form is context_form:
          continue
        host = form(jitted)
        lowered = host.lower(x, 3)
        self.assertMarked(lowered.as_text())
        for run in (lambda: host(x, 3), lambda: lowered.compile()(x)):
          out = run()
          self.assertArraysEqual(out, x * 3)
          self.assertTrue(out.sharding.is_equivalent_to(sharding, 1))
        host.clear_cache()
        self.assertTrue(host(x, 3).sharding.is_equivalent_to(sharding, 1))


class ComputeOnTransformTest(jtu.JaxTestCase):
  """Under each transformation: the value, the mark, the host's branch."""

  def setUp(self):
    super().setUp()
    self.x = np.arange(8, dtype=np.float32) / 8
    self.mesh_1d = jax.sharding.Mesh(np.array(jax.devices()[:4]), 'a')
    self.mesh_2d = jax.sharding.Mesh(
        np.array(jax.devices()[:4]).reshape(2, 2), ('a', 'b'))

  def cases(self, host):
    f = host(jax.jit(lambda x: by_platform(x) * 2))
    total = host(jax.jit(lambda x: jnp.sum(by_platform(x) ** 2)))
    x = self.x
    y = 2 * (x + 1)
    return {
        'jit': (f, (x,), y),
        'vmap': (jax.vmap(f), (x,), y),
        'grad': (jax.grad(total), (x,), y),
        'value_and_grad': (jax.value_and_grad(total), (x,),
                           (np.sum((x + 1) ** 2), y)),
        'hessian': (jax.hessian(total), (x,), 2 * np.eye(8, dtype=np.float32)),
        'jvp': (lambda x: jax.jvp(total, (x,), (x,))[1], (x,), np.sum(y * x)),
        'scan': (lambda x: lax.scan(lambda c, v: (c + f(v), f(v)), x[0] * 0, x),
                 (x,), (np.sum(y), y)),
        'while': (lambda x: lax.while_loop(lambda c: c[0] < 4., f, x), (x,),
                  functools.reduce(lambda c, _: 2 * (c + 1), range(2), x)),
        'cond': (lambda x: lax.cond(x[0] < 1, f, lambda x: x, x), (x,), y),
        'remat': (jax.grad(jax.checkpoint(total)), (x,), y),
        'shard_map_1d': (shard_map(f, mesh=self.mesh_1d, in_specs=P('a'),
                                   out_specs=P('a')), (x,), y),
        'shard_map_2d': (shard_map(f, mesh=self.mesh_2d, in_specs=P('b', 'a'),
                                   out_specs=P('b', 'a')),
                         (x.reshape(4, 2),), y.reshape(4, 2)),
        'custom_jvp_inside': (
            host(jax.jit(lambda x: jax.nn.relu(by_platform(x)))), (x,), x + 1),
        'of_the_gradient': (
            host(jax.jit(jax.grad(lambda x: jnp.sum(by_platform(x) ** 2)))),
            (x,), y),
        'of_vmap': (host(jax.jit(jax.vmap(by_platform))), (x,), x + 1),
    }

  NAMES = ('jit', 'vmap', 'grad', 'value_and_grad', 'hessian', 'jvp', 'scan',
           'while', 'cond', 'remat', 'shard_map_1d', 'shard_map_2d',
           'custom_jvp_inside', 'of_the_gradient', 'of_vmap')

  @parameterized.named_parameters((f'_{name}', name) for name in NAMES)
  def test_values(self, name):
    for form in FORMS:
      f, args, want = self.cases(form)[name]
      if not name.startswith('shard_map'):
        self.assertAllClose(f(*args), want)
      outer = jax.jit(lambda *args: f(*args))
      self.assertAllClose(outer(*args), want)
      self.assertAllClose(outer.lower(*args).compile()(*args), want)

  @parameterized.named_parameters((f'_{name}', name) for name in NAMES)
  def test_host_branch_wherever_it_is_lowered_for(self, name):
    for form in FORMS:
      f, args, want = self.cases(form)[name]
      outer = jax.jit(lambda *args: f(*args))
      platforms = ('tpu', 'cuda') if name in ('jit', 'grad') else ('tpu',)
      for platform in platforms:
        self.assertIn(MARK, text_for(platform, outer, *args))
        if name.startswith('shard_map'):
          continue  # an exported function runs on as many devices: below
        _, out = run_as_lowered_for(platform, outer, *args)
        self.assertAllClose(out, want)

  def test_shard_map_host_branch(self):
    for form in FORMS:
      for name, mesh in (('shard_map_1d', self.mesh_1d),
                         ('shard_map_2d', self.mesh_2d)):
        f, (x,), want = self.cases(form)[name]
        spec = P('a') if name == 'shard_map_1d' else P('b', 'a')
        x = jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))
        _, out = run_as_lowered_for('tpu', jax.jit(f), x)
        self.assertAllClose(out, want)

  def test_call_within_an_outer_jit_is_marked_itself(self):
    for form in FORMS:
      host = form(jax.jit(by_platform))
      text = jax.jit(lambda x: host(x) * 2).lower(self.x).as_text()
      calls = [line for line in text.splitlines() if ' call @' in line]
      self.assertNotEmpty(calls)
      for line in calls:
        self.assertIn(MARK, line)


class ComputeOnCachesTest(jtu.JaxTestCase):
  """Caches of one jitted function, with and without compute_on."""

  def setUp(self):
    super().setUp()
    self.x = np.arange(4, dtype=np.float32)

  @red(WRONG_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_either_order(self):
    for form in FORMS:
      for host_first in (True, False):
        jitted = jax.jit(lambda x: jnp.cos(x) * 2)
        host = form(jitted)
        device = form(jitted, 'device')
        steps = [(host, 'host'), (jitted, None), (device, 'dense')]
        for _ in range(2):
          for fun, name in steps if host_first else reversed(steps):
            fun(self.x)
            text = fun.lower(self.x).as_text()
            self.assertEqual('_xla_compute_type' in text, name is not None,
                             'whether the text has a compute type')
            if name is not None:
              self.assertIn(f'_xla_compute_type = "{name}"', text)

  def test_one_program(self):
    for form in FORMS:
      jitted = jax.jit(lambda x: jnp.cos(x))
      host = form(jitted)
      for both in (lambda x: (host(x), jitted(x)),
                   lambda x: (jitted(x), host(x))):
        text = jax.jit(both).lower(self.x).as_text()
        cosines = [line for line in text.splitlines() if '.cosine' in line]
        self.assertLen(cosines, 2)
        self.assertLen([line for line in cosines if MARK in line], 1)

  @red(WRONG_COMPUTE_TYPE, bases='<0.6')
  @red(NO_SUCH_METHOD, bases='>=0.6', api_missing=True)
  def test_threads(self):
    for form in FORMS:
      jitted = jax.jit(lambda x: jnp.cos(x) * 2)
      failures = []
      start = threading.Barrier(8)
      def work(i):
        try:
          start.wait(30)
          for _ in range(5):
            fun = form(jitted) if i % 2 else jitted
            self.assertAllClose(fun(self.x), np.cos(self.x) * 2)
            text = fun.lower(self.x).as_text()
            self.assertEqual(MARK in text, bool(i % 2),
                             'whether the text has a compute type')
        except BaseException as e:  # pylint: disable=broad-except
          failures.append(e)
      threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
      for t in threads:
        t.start()
      for t in threads:
        t.join()
      if failures:
        raise failures[0]

  def test_freed_with_the_function(self):
    for form in FORMS:
      jitted = jax.jit(lambda x: x * 3)
      host = form(jitted)
      host(self.x)
      refs = weakref.ref(jitted), weakref.ref(host)
      del jitted, host
      gc.collect()
      self.assertEqual([ref() for ref in refs], [None, None])

  def test_inline_use_traces_once(self):
    for form in FORMS:
      traces = []
      def plain(x):
        traces.append(None)
        return x + 1
      for fun in (plain, jax.jit(plain)):
        if form is context_form and fun is plain:
          continue  # runs op by op: there is no trace to keep
        del traces[:]
        for _ in range(5):
          form(fun)(self.x)
        self.assertLen(traces, 1)
