# SPDX-License-Identifier: Apache-2.0
"""JAX's lowered modules fed to a foreign runtime: IREE.

IREE shares neither compiler nor runtime with XLA. It takes the text of a
StableHLO module and calls its ``main`` with a flat list of arrays, so it needs
to know exactly which arguments became parameters. The oracle is the function
itself, run by JAX.
"""


from absl.testing import parameterized
import iree.compiler
import iree.runtime
import jax
from jax import export
from jax import lax
from jax._src import config
from jax._src import core
from jax._src import test_util as jtu
import jax.numpy as jnp
import numpy as np

from parameter_map.testing.hoisting import CAN_HOIST, hoisting

jax.config.parse_flags_with_absl()

X = np.arange(4, dtype=np.float32)
Y = np.arange(4, dtype=np.float32) + 10
Z = np.arange(6, dtype=np.int32).reshape(2, 3)
PARAMS = dict(w1=np.full((3, 5), .1, np.float32),
              b1=np.ones((1, 5), np.float32),
              w2=np.full((5, 2), .2, np.float32), unused=X)
BATCH = dict(x=np.ones((2, 3), np.float32), y=np.ones((2, 2), np.float32),
             mask=np.ones(2, bool))


def loss(params, batch, unused):
  hidden = jnp.tanh(batch['x'] @ params['w1'] + params['b1'])
  return jnp.mean((hidden @ params['w2'] - batch['y']) ** 2)


def iree_compiled(lowered):
  """Compiles `lowered` with IREE; returns a function of the values."""
  code = iree.compiler.compile_str(
      lowered.as_text('stablehlo'), target_backends=['llvm-cpu'],
      input_type='stablehlo', extra_args=[
          '--iree-llvmcpu-target-cpu=host',
          # By default double precision is quietly made single.
          '--iree-input-demote-f64-to-f32=false'])
  context = iree.runtime.SystemContext(
      config=iree.runtime.Config('local-sync'))
  context.add_vm_module(
      iree.runtime.VmModule.copy_buffer(context.instance, code))
  *_, module = context.modules.values()
  def call(values):
    out = module['main'](*[np.asarray(v) for v in values])
    if not isinstance(out, (list, tuple)):
      out = [out]
    return [o.to_host() for o in out]
  return call


# name: function, options of jit, args, kwargs, number of parameters
CASES = dict(
    loss=(loss, {}, (PARAMS, BATCH, Z), {}, 5),
    gradient=(jax.grad(loss), {}, (PARAMS, BATCH, Z), {}, 5),
    gradient_of_last=(jax.grad(lambda a, b, c: jnp.sum(a * 2 + c ** 2), 2), {},
                      (X, X, Y), {}, 1),
    none_used=(lambda a, b: lax.full((3,), 2.), {}, (X, Y), {}, 0),
    keywords=(lambda a, *, k, u, z: a + k * z, {}, (X,), dict(z=Y, u=Z, k=X),
              3),
    donated=(lambda a, b, c: (c, b + 1), dict(donate_argnums=(0, 1)),
             (X, Y, Z), {}, 2),
    closed_over=(lambda a, b: b + Y, {}, (X, X), {}, 1),
    passed_through=(lambda a, b, c: (c, a, c), {}, (X, Y, Z), {}, 2),
    key_data=(lambda u, d: jax.random.bits(jax.random.wrap_key_data(d), (3,)),
              {}, (X, np.array([1, 2], np.uint32)), {}, 1),
    keep_unused=(lambda a, b, c: b * 2, dict(keep_unused=True), (X, Y, Z), {},
                 3),
    while_loop=(lambda n, u, b: lax.while_loop(
        lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * b), (0, b))[1], {},
        (3, X, Y), {}, 2),
)


# IREE has no dialect for Shardy's annotations.
@jtu.with_config(jax_use_shardy_partitioner=False)
class ParameterMapIreeTest(jtu.JaxTestCase):

  @parameterized.named_parameters((n, n) for n in CASES)
  @jtu.ignore_warning(message='Some donated buffers were not usable')
  def test_case(self, name):
    f, options, args, kwargs, number = CASES[name]
    lowered = jax.jit(f, **options).lower(*args, **kwargs)
    self.assertLen(lowered.parameter_map, number)
    got = iree_compiled(lowered)(lowered.parameter_values(*args, **kwargs))
    expected = jax.tree.leaves(jax.jit(f)(*args, **kwargs))
    self.assertLen(got, len(expected))
    for e, g in zip(expected, got):
      self.assertEqual(e.dtype, g.dtype)
      np.testing.assert_allclose(e, g, rtol=1e-4)

  def test_all_arguments_is_one_too_many(self):
    lowered = jax.jit(lambda a, b, c: a + c).lower(X, Y, X)
    call = iree_compiled(lowered)
    with self.assertRaisesRegex(ValueError, 'Error invoking function'):
      call([X, Y, X])
    out, = call(lowered.parameter_values(X, Y, X))
    np.testing.assert_array_equal(out, X + X)

  def test_dimension_variables(self):
    # The module keeps its unknown dimensions, and IREE runs it at any size.
    n, m = export.symbolic_shape('n, m')
    def f(a, u, b):
      return jnp.sum(a) * a.shape[1] + b * (2 * a.shape[0])
    spec = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)
    lowered = jax.jit(f).lower(spec(n, m), spec(m), spec(3))
    self.assertEqual([p.kind for p in lowered.parameter_map],
                     ['dimension'] * 2 + ['argument'] * 3)
    call = iree_compiled(lowered)
    for shape in ((2, 3), (5, 4)):
      a = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
      args = a, a[0], X[:3]
      got, = call(lowered.parameter_values(*args))
      np.testing.assert_allclose(
          got, a.sum() * shape[1] + X[:3] * (2 * shape[0]), rtol=1e-5)

  def test_mutable_array(self):
    new = core.mutable_array if hasattr(core, 'mutable_array') else jax.new_ref
    ref = new(jnp.asarray(Y))
    def f(u, b):
      ref[...] += b
      return ref[...] * 2
    lowered = jax.jit(f).lower(X, Y)
    results = iree_compiled(lowered)(lowered.parameter_values(X, Y))
    for result, got in zip(lowered.result_map, results, strict=True):
      np.testing.assert_array_equal(
          got, Y + Y if result.kind == 'ref' else (Y + Y) * 2)

  def test_hoisted_constant(self):
    # Bases that can't hoist have the constant in the module.
    big = jnp.asarray(Y)
    with hoisting(True) as parameters:
      lowered = jax.jit(lambda a, b: b * big).trace(X, X).lower(
          _private_parameters=parameters)
      self.assertEqual([p.kind for p in lowered.parameter_map],
                       ['constant'] * CAN_HOIST + ['argument'])
      got, = iree_compiled(lowered)(lowered.parameter_values(X, X))
    np.testing.assert_array_equal(got, X * Y)

  def test_x64(self):
    with config.enable_x64(True):
      x = np.arange(3.)
      lowered = jax.jit(lambda a, b: b * 2).lower(x, x)
      got, = iree_compiled(lowered)(lowered.parameter_values(x, x))
    self.assertEqual(got.dtype, np.float64)
    np.testing.assert_array_equal(got, x * 2)
