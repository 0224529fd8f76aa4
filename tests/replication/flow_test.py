# SPDX-License-Identifier: Apache-2.0
"""The summaries that type loops and branches: their results and their cost."""
from unittest import mock

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.replication.rules import flow
from jax.experimental import shard_map as shard_map_lib
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

AXES = flow.Sized(flow.Axes(('i', 'j'), {'i': 2, 'j': 2}))


def summary(f, *args):
  sizes = [(a, 2) for a in AXES]
  jaxpr = jax.make_jaxpr(f, axis_env=sizes)(*args).jaxpr
  return flow.summarize(jaxpr, AXES)


def depends(out, axis):
  """The inputs that an output varies with along an axis; 'made' for bit 0.

  An input comes twice, where it decides also as 'if <input> differs'.
  """
  mask = out.masks[AXES.index(axis)]
  bits = [i for i in range(mask.bit_length()) if mask >> i & 1]
  kind = lambda i: i // 2 if i % 2 else f'if {i // 2 - 1} differs'
  return {kind(i) if i else 'made' for i in bits}


class SummaryTest(jtu.JaxTestCase):

  def test_each_axis_by_itself(self):
    x, y, z = summary(
        lambda x, y, z: (x + lax.psum(y, 'i'),
                         lax.axis_index('j').astype('float32') * y, z),
        1., 2., 3.)
    self.assertEqual(depends(x, 'i'), {0})
    self.assertEqual(depends(x, 'j'), {0, 1})
    self.assertEqual(depends(y, 'i'), {1})
    self.assertEqual(depends(y, 'j'), {1, 'made'})
    self.assertEqual([o.source for o in (x, y, z)], [None, None, 2])

  def test_loop_carries_what_feeds_them(self):
    # a <- b <- c, so a depends on all three; d is untouched.
    def f(a, b, c, d, limit):
      return lax.while_loop(lambda v: v[2] < limit,
                            lambda v: (v[0] + v[1], v[1] + v[2], v[2] + 1,
                                       v[3]),
                            (a, b, c, d))
    a, b, c, d = summary(f, 1., 2., 3., 4., 5.)
    # What decides is c and the limit: where these differ, not where they vary.
    decides = {'if 2 differs', 'if 4 differs'}
    self.assertEqual(depends(a, 'i'), {0, 1, 2} | decides)
    self.assertEqual(depends(b, 'i'), {1, 2} | decides)
    self.assertEqual(depends(c, 'i'), {2} | decides)
    self.assertEqual(depends(d, 'i'), {3})
    self.assertEqual(d.source, 3)

  def test_one_operand_given_twice(self):
    swap = lambda p, a, b: lax.cond(p > 0, lambda a, b: a, lambda a, b: b, a, b)
    same, two, literals = summary(
        lambda p, a, b: (swap(p, a, a), swap(p, a, b), swap(p, 1., 2.)),
        1., 2., 3.)
    self.assertEqual(same.source, 1)
    self.assertEqual(depends(same, 'i'), {1})
    self.assertEqual(depends(two, 'i'), {1, 2, 'if 0 differs'})
    self.assertEqual(depends(literals, 'i'), {'if 0 differs'})

  def test_custom_rule_is_no_copy(self):
    f = jax.custom_vjp(lambda x: x)
    f.defvjp(lambda x: (x, None), lambda _, ct: (2 * ct,))
    self.assertIsNone(summary(f, 1.)[0].source)
    self.assertEqual(summary(jax.jit(lambda x: x), 1.)[0].source, 0)

  def test_rule_of_a_library_is_asked(self):
    p = core.Primitive('number_of_this_device')
    p.def_abstract_eval(lambda x: x)
    rule = lambda mesh, x_rep, **_: set(mesh.axis_names) - {'j'}
    with mock.patch.dict(shard_map_lib._check_rules, {p: rule}):
      out, = summary(p.bind, 1.)
    self.assertEqual(depends(out, 'i'), {0})
    self.assertEqual(depends(out, 'j'), {0, 'made'})


def nested(kind, depth, size=1):
  def f(c):
    x = c[0]
    for _ in range(size):
      x = jnp.sin(x)
    return (x + c[1], *c[1:])

  def wrap(f):
    if kind == 'scan':
      return lambda c: lax.scan(lambda c, _: ((*c[1:], f(c)[0]), None), c, None,
                                length=2)[0]
    if kind == 'while':
      return lambda c: lax.while_loop(lambda c: c[0] < 1.,
                                      lambda c: (*c[1:], f(c)[0]), c)
    return lambda c: lax.cond(c[0] > 0, f, lambda c: c, c)
  for _ in range(depth):
    f = wrap(f)
  return f


class CostTest(jtu.JaxTestCase):

  def visits(self, f):
    """Equations typed, and primitives rewritten, while f is traced."""
    mesh = Mesh(np.array(jax.devices()[:4]), ('i',))
    typed = mock.Mock(side_effect=flow.infer)
    trace = shard_map_lib.RewriteTrace
    process = trace.process_primitive
    rewritten = []

    def count(self, *args):
      rewritten.append(args)
      return process(self, *args)
    with mock.patch.object(flow, 'infer', typed):
      with mock.patch.object(trace, 'process_primitive', count):
        jax.make_jaxpr(shard_map(
            lambda x, w: f((x[0], w, w))[0][None], mesh=mesh,
            in_specs=(P('i'), P()), out_specs=P('i')))(
                np.ones(4, np.float32), np.float32(1))
    return typed.call_count + len(rewritten)

  @parameterized.named_parameters(*[(f'_{k}', k)
                                    for k in ('scan', 'while', 'cond')])
  def test_linear_in_depth(self, kind):
    counts = [self.visits(nested(kind, d)) for d in (1, 2, 4, 8)]
    per_level = counts[1] - counts[0]
    self.assertLessEqual(counts[2] - counts[1], 2 * per_level + 2)
    self.assertLessEqual(counts[3] - counts[2], 4 * per_level + 4)

  def test_linear_in_size(self):
    counts = [self.visits(nested('scan', 4, size)) for size in (10, 20, 40)]
    self.assertEqual(counts[2] - counts[1], 2 * (counts[1] - counts[0]))
