# SPDX-License-Identifier: Apache-2.0
"""compute_on marks every operation that it stages, and no other (jax#27825)."""

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import config
from jax._src import sharding_impls
from jax._src import test_util as jtu
from jax._src.lib.mlir import ir
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from testing.compute_on_forms import FORMS
from testing.red import red

config.parse_flags_with_absl()

# What pristine JAX says.
UNMARKED_OPERATIONS = '^AssertionError: .*operations without the compute type'

# Constants compute nothing; the others hold or end a body.
NO_COMPUTATION = ('stablehlo.constant', 'stablehlo.return', 'func.return',
                  'func.func', 'builtin.module', 'sdy.mesh')
MARK = '_xla_compute_type'
PLACEMENT = '_xla_buffer_placement'


def attributes(op):
  if 'mhlo.frontend_attributes' not in op.attributes:
    return {}
  found = ir.DictAttr(op.attributes['mhlo.frontend_attributes'])
  return {a.name: ir.StringAttr(a.attr).value for a in found}


def operations(op, named=None):
  """Every operation that computes, those in bodies too; or those named."""
  for region in op.regions:
    for block in region.blocks:
      for inner in block.operations:
        inner = inner.operation
        if (inner.name in named if named else
            inner.name not in NO_COMPUTATION):
          yield inner
        yield from operations(inner, named)


def lowered_operations(f, *args, platform=None):
  """The names and frontend attributes of what `f` is lowered to."""
  traced = jax.jit(f).trace(*args)
  platforms = {'lowering_platforms': tuple(platform.split(','))} if (
      platform) else {}
  # The operations live no longer than the module does.
  module = traced.lower(**platforms).compiler_ir('stablehlo')
  return [(op.name, attributes(op)) for op in operations(module.operation)]


def compute_operations(f, *args, platform='tpu'):
  # What puts the result into the device's memory stands outside.
  return [(name, found)
          for name, found in lowered_operations(f, *args, platform=platform)
          if PLACEMENT not in found]


def vector_while(x):
  return jax.vmap(lambda x: lax.while_loop(
      lambda c: c < 9, lambda c: c * 2 + 1, x))(x)


FUNCTIONS = {
    'power': lambda x: x ** 3,
    'sum': jnp.sum,
    'argmax': jnp.argmax,
    'cumsum': jnp.cumsum,
    'sort': jnp.sort,
    'random': lambda x: x[:4] + jax.random.normal(jax.random.key(0), (4,)),
    'logsumexp': jsp.special.logsumexp,
    'softmax': jax.nn.softmax,
    'matmul': lambda x: jnp.outer(x, x) @ x,
    'convolve': lambda x: jnp.convolve(x, x),
    'fft': lambda x: jnp.fft.fft(x).real,
    'scatter': lambda x: x.at[jnp.array([1, 2])].add(x[:2]),
    'integers': lambda x: (x * 9).astype(jnp.int32) // 3 % 2,
    'cholesky': lambda x: jnp.linalg.cholesky(jnp.eye(8) + jnp.outer(x, x)),
    'bessel': jsp.special.i1,
    'while': lambda x: lax.while_loop(
        lambda c: jnp.sum(c) < 90, lambda c: c ** 3 + 1, x),
    'vector_while': vector_while,
    'cond': lambda x: lax.cond(x[0] > 0, jnp.sin, lambda x: x ** 3, x),
    'scan': lambda x: lax.scan(lambda c, y: (c * y, c + y ** 3), 1., x),
    'grad': jax.grad(lambda x: jnp.sum(jnp.tanh(x) ** 3)),
    'remat': jax.grad(lambda x: jnp.sum(jax.checkpoint(jnp.tanh)(x ** 3))),
    'platform': lambda x: lax.platform_dependent(
        x, cpu=lambda x: x ** 3, tpu=jnp.sin, cuda=jnp.cos),
}


class ComputeOnEveryOpTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    self.x = np.arange(8, dtype=np.float32) / 9

  @red(UNMARKED_OPERATIONS,
       cases=['cholesky', 'cond', 'cumsum', 'logsumexp', 'platform', 'power',
              'random', 'remat', 'scan', 'softmax', 'sum', 'vector_while',
              'while'])
  # A rule lowered out of line; up to 0.6.0 its call was marked.
  @red(UNMARKED_OPERATIONS, bases='>=0.7', cases=['argmax'])
  @parameterized.named_parameters((f'_{name}', name) for name in FUNCTIONS)
  def test_every_operation_is_marked(self, name):
    f = FUNCTIONS[name]
    for form in FORMS:
      for host in (form(f), form(jax.jit(f))):
        ops = compute_operations(lambda x: host(x), self.x)
        unmarked = [name for name, found in ops if MARK not in found]
        self.assertEqual(unmarked, [], 'operations without the compute type')
        self.assertEqual({found[MARK] for _, found in ops}, {'host'})

  @red(UNMARKED_OPERATIONS)
  def test_a_large_maximum_is_marked(self):
    # From 0.10.2 on CPUs it is one of integers, which keeps nan.
    x = np.ones((80, 90), np.float32)
    for form in FORMS:
      host = form(jax.jit(lambda x: jnp.max(x, axis=1)))
      both = compute_operations(lambda x: host(x) + jnp.max(x, axis=1), x,
                                platform='cpu')
      ops = compute_operations(host, x, platform='cpu')
      self.assertNotEmpty(ops)
      self.assertEqual([name for name, found in ops if MARK not in found], [],
                       'operations without the compute type')
      self.assertNotEmpty([name for name, found in both if MARK not in found])

  @parameterized.named_parameters(
      (f'_{name}', name)
      for name in ('power', 'argmax', 'sum', 'while', 'cond'))
  def test_values_stay(self, name):
    f = FUNCTIONS[name]
    want = jax.jit(f)(self.x)
    for form in FORMS:
      self.assertAllClose(form(f)(self.x), want)
      self.assertAllClose(jax.jit(form(f))(self.x), want)

  @red('^AssertionError: Element counts were not equal')
  @parameterized.named_parameters(('_tpu', 'tpu'), ('_cuda', 'cuda'))
  def test_no_operation_outside_is_marked(self, platform):
    # The cosine is outside, the sine inside, the rest on either side.
    inside = lambda x: (jnp.argmax(jnp.sin(x) ** 3), jnp.sum(x))
    outside = lambda x: (jnp.argmax(jnp.cos(x) ** 3), jnp.sum(x))
    alone = compute_operations(outside, self.x, platform=platform)
    for form in FORMS:
      host = form(jax.jit(inside))
      for f in (lambda x: (outside(x), host(x)),
                lambda x: (host(x), outside(x))):
        ops = compute_operations(f, self.x, platform=platform)
        unmarked = [name for name, found in ops if MARK not in found]
        self.assertCountEqual(unmarked, [name for name, _ in alone])
        for name, found in ops:
          if name in ('stablehlo.cosine', 'stablehlo.sine'):
            self.assertEqual(MARK in found, name == 'stablehlo.sine')

  def test_constants_shared_with_the_outside_are_not_marked(self):
    for form in FORMS:
      host = form(lambda x: x * 3.)
      traced = jax.jit(lambda x: (x * 3., host(x), x * 3.)).trace(self.x)
      text = traced.lower().as_text()
      for line in text.splitlines():
        if 'stablehlo.constant' in line:
          self.assertNotIn(MARK, line)

  # Where a rule's result is a constant, the base marks it: an initial carry, a
  # platform's number.
  @parameterized.named_parameters((f'_{name}', name) for name in FUNCTIONS
                                  if name not in ('scan', 'platform'))
  def test_what_computes_nothing_is_not_marked(self, name):
    for form in FORMS:
      host = form(FUNCTIONS[name])
      traced = jax.jit(lambda x: host(x)).trace(self.x)
      module = traced.lower(lowering_platforms=('tpu',)).compiler_ir(
          'stablehlo')
      found = [(op.name, attributes(op)) for op in operations(
          module.operation, NO_COMPUTATION)]
      self.assertNotEmpty(found)
      for op, its in found:
        self.assertNotIn(MARK, its, op)

  @red(r"^AssertionError: None != '1' : stablehlo\.multiply")
  def test_streams(self):
    for form in FORMS:
      stream = form(lambda x: x ** 3, 'gpu_stream:1')
      ops = compute_operations(lambda x: stream(x), self.x, platform='cuda')
      self.assertNotEmpty(ops)
      for name, found in ops:
        self.assertEqual(found.get('_xla_stream_annotation'), '1', name)
        self.assertEqual(found.get('inlineable'), 'false', name)

  @red("^AssertionError: None != '1' : stablehlo\\.")
  def test_streams_of_several_platforms(self):
    # Each platform has a rule of its own, and a case chooses among them.
    for form in FORMS:
      stream = form(FUNCTIONS['cholesky'], 'gpu_stream:1')
      ops = compute_operations(lambda x: stream(x), self.x,
                               platform='cuda,cpu')
      self.assertIn('stablehlo.case', [name for name, _ in ops])
      for name, found in ops:
        self.assertEqual(found.get('_xla_stream_annotation'), '1', name)

  @red('^AssertionError: .*the placement is gone', bases='<0.10')
  def test_a_transfer_within_keeps_its_placement(self):
    if hasattr(jax, 'memory'):
      place = jax.memory.Space.Host
    else:
      place = sharding_impls.TransferToMemoryKind('pinned_host')
    f = lambda x: jax.device_put(x * 2, place)
    placements = lambda f: [found[PLACEMENT]
                            for _, found in lowered_operations(
                                f, self.x, platform='tpu')
                            if PLACEMENT in found]
    want = placements(f)
    self.assertEqual(want, ['pinned_host'])
    for form in FORMS:
      # The functional form places its result once more, outside.
      self.assertIn('pinned_host', placements(form(f, 'device')),
                    'the placement is gone')
