# SPDX-License-Identifier: Apache-2.0
"""The type of what ragged_all_to_all gives, and its gradients.

CPUs have no code for it. It is lowered here to a gather, from which each device
takes what was sent to it; the oracle is the same exchange in NumPy.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import test_util as jtu
from jax._src.interpreters import mlir
from jax._src.lax import parallel
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.red import red
from testing.sharding import shard_map
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import maybe_jit

jax.config.parse_flags_with_absl()

# What pristine JAX says.
WRONG_VALUES = r'^AssertionError: \s+Not equal to tolerance'

ONES = np.ones(4, np.int32)
PLACES = np.arange(4, dtype=np.int32)
X = np.arange(1., 17.).astype(np.float32)
W = np.float32(X ** 2)


def gathered(operand, output, sent_from, sizes, put_at, _, *, axis_name, **__):
  """The exchange of one element with each device."""
  del sizes
  operands, sources, places = (
      lax.all_gather(x, axis_name) for x in (operand, sent_from, put_at))
  here = lax.axis_index(axis_name)
  for sender in range(4):
    value = operands[sender, sources[sender, here]]
    output = output.at[places[sender, here]].set(value)
  return output


def exchange(x, output):
  """Element k goes to device k, to the place that is the sender's number."""
  places = jnp.full(4, lax.axis_index('x'), jnp.int32)
  return lax.ragged_all_to_all(x, output, PLACES, ONES, places, ONES,
                               axis_name='x')


def mapped(f, in_specs, out_specs):
  return shard_map(f, mesh=make_mesh(4), in_specs=in_specs,
                   out_specs=out_specs)


class RaggedAllToAllTest(jtu.JaxTestCase):

  def setUp(self):
    super().setUp()
    mlir.register_lowering(
        parallel.ragged_all_to_all_p,
        mlir.lower_fun(gathered, multiple_results=False), platform='cpu')

  @parameterized.parameters(True, False)
  def test_value(self, varying):
    f = mapped(lambda x: exchange(x, cast(jnp.zeros(4), 'x') if varying
                                  else jnp.zeros(4)), P('x'), P('x'))
    got = jax.jit(f)(X)
    self.assertArraysEqual(np.asarray(got), X.reshape(4, 4).T.ravel())

  @red({
      '<0.6.1':
          r'^ValueError: unexpected JAX type \(e\.g\. shape/dtype\) for '
          'argument to vjp function: got',
      '>=0.6.1': WRONG_VALUES,
  }, cases={'inside': True})
  @red(WRONG_VALUES)
  @parameterized.product(jit=[True, False], inside=[True, False])
  def test_gradient(self, jit, inside):
    loss = lambda x, w: jnp.sum(exchange(x, jnp.zeros(4)) * w)
    if inside:
      f = mapped(jax.grad(loss), (P('x'), P('x')), P('x'))
    else:
      f = lambda x, w: jax.grad(lambda x: jnp.sum(mapped(
          lambda x, w: loss(x, w)[None], (P('x'), P('x')), P('x'))(x, w)))(x)
    self.assertAllClose(maybe_jit(jit or not inside)(f)(X, W),
                        W.reshape(4, 4).T.ravel())

  @red(WRONG_VALUES)
  def test_gradient_of_what_all_send(self):
    f = mapped(lambda x: exchange(x, jnp.zeros(4)), P(), P('x'))
    got = jax.jit(jax.grad(lambda x: jnp.sum(f(x) * W)))(X[:4])
    self.assertAllClose(got, W.reshape(4, 4).sum(1))

  @red('^AssertionError: ValueError not raised')
  def test_refuses_one_output(self):
    with self.assertRaisesRegex(ValueError, 'require replication'):
      jax.jit(mapped(lambda x: exchange(x, jnp.zeros(4)), P('x'), P()))(X)
