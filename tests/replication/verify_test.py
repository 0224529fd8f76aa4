# SPDX-License-Identifier: Apache-2.0
"""The verifier finds each rule of the check that says too much."""
from unittest import mock

from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import test_util as jtu
from jax._src.replication.rules import verify
from jax.experimental import shard_map as sm
from jax.experimental.shard_map import shard_map
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.sharding import eight_devices

jax.config.parse_flags_with_absl()
eight_devices()

ROWS = np.arange(4, dtype=np.float32)
# The primitive whose rule is wrong, and a function of a device's own number and
# of one that all have, in which its first result differs between devices.
PROGRAMS = {
    'mul': (lax.mul_p, lambda a, w: a * w),
    'axis_index': (lax.axis_index_p, lambda a, w: w + lax.axis_index(
        'x').astype(np.float32)),
    'ppermute': (lax.ppermute_p, lambda a, w: lax.ppermute(
        a, 'x', [(0, 1), (1, 0)])),
    'cond of the index': (lax.cond_p, lambda a, w: lax.cond(
        a > 0, lambda w: w + 1, lambda w: w, w)),
    'cond of a branch': (lax.cond_p, lambda a, w: lax.cond(
        w > 0, lambda a, w: a, lambda a, w: w, a, w)),
    'while of the predicate': (lax.while_p, lambda a, w: lax.while_loop(
        lambda c: c < a, lambda c: c + 1, w)),
    'while of the body': (lax.while_p, lambda a, w: lax.fori_loop(
        0, w.astype(int), lambda _, c: c + a, w)),
    'scan': (lax.scan_p, lambda a, w: lax.scan(
        lambda c, _: (c + a, None), w, None, length=2)[0]),
    'jit': (jax._src.pjit.pjit_p, lambda a, w: jax.jit(jnp.sin)(a)),
}


def replicated(mesh, /, *in_rep, **params):
  """A rule that says that all results are the same on all devices."""
  del in_rep
  jaxpr = params.get('jaxpr', params.get('body_jaxpr', None))
  if 'branches' in params:
    jaxpr = params['branches'][0]
  if jaxpr is None:
    return set(mesh.axis_names)
  return [set(mesh.axis_names)] * len(jaxpr.out_avals)


def mapped(f, sizes=(4,)):
  devices = np.array(jax.devices()[:np.prod(sizes)]).reshape(sizes)
  mesh = Mesh(devices, ('x', 'y')[:len(sizes)])
  return shard_map(lambda a, w: f(a[0], w)[None], mesh=mesh,
                   in_specs=(P('x'), P()), out_specs=P('x'))


class VerifyTest(jtu.JaxTestCase):

  @parameterized.product(name=list(PROGRAMS), sizes=[(4,), (2, 2)])
  def test_rule_says_too_much(self, name, sizes):
    prim, f = PROGRAMS[name]
    g = jax.make_jaxpr(mapped(f, sizes))
    g(ROWS, np.float32(1))  # traces what can be traced, by rules that are right
    with mock.patch.dict(sm._check_rules, {prim: replicated}):
      with self.assertRaisesRegex(
          verify.NarrowTypeError, rf"(?s)^{prim.name} at .*result \d may differ"
          r".*'x'.*report"):
        jax.make_jaxpr(mapped(f, sizes))(ROWS, np.float32(1))
      with jax.enable_checks(False):
        jax.make_jaxpr(mapped(f, sizes))(ROWS, np.float32(1))

  def test_predicate_on_an_axis_of_one_device(self):
    prim, f = PROGRAMS['cond of the index']
    del prim
    jax.make_jaxpr(mapped(f, (1, 4)))(ROWS[:1], np.float32(1))

  def test_shard_map_without_the_check_in_another(self):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
    def f(a, w):
      inner = shard_map(lambda a, w: w * a, mesh=mesh, in_specs=(P(), P()),
                        out_specs=P(), check_rep=False)
      return inner(a[0], w)[None]
    before = verify.checked
    jax.make_jaxpr(shard_map(
        f, mesh=mesh, in_specs=(P('x'), P()), out_specs=P('x'),
        auto=frozenset(['y'])))(ROWS[:2], np.float32(1))
    self.assertGreater(verify.checked, before)

  def test_primitive_of_another_library_speaks_for_itself(self):
    total_p = core.Primitive('total')  # a sum over devices, of its own

    def shape(x, *, axes):  # of this module, and not of jax
      del axes
      return x
    total_p.def_abstract_eval(shape)
    sm.register_check(total_p)(
        lambda mesh, *in_rep, axes: in_rep[0] | set(axes))
    sm.register_norewrite(total_p)
    self.addCleanup(sm._check_rules.pop, total_p)
    self.addCleanup(sm._rewrite_rules.pop, total_p)
    f = mapped(lambda a, w: total_p.bind(a, axes=('x',)) * w)
    before = verify.checked
    jax.make_jaxpr(f)(ROWS, np.float32(1))
    self.assertGreater(verify.checked, before)

  def test_forward_rule_hands_on_what_all_have(self):
    @jax.custom_vjp
    def f(a, w):
      return a * w
    f.defvjp(lambda a, w: (a * w, (a, w)),
             lambda res, ct: (ct * res[1], ct * res[0]), optimize_remat=True)
    g = mapped(lambda a, w: jax.grad(f)(a, w))
    self.assertAllClose(jax.jit(g)(ROWS, np.float32(3)),
                        np.full_like(ROWS, 3))

  @parameterized.parameters('jit', 'grad', 'jvp', 'vmap')
  def test_looks_at_every_equation_of_what_is_right(self, transform):
    def f(a, w):
      y = lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + a * w, 0.)
      return lax.cond(a > 0, lambda y: y * w, lambda y: y, y)
    g = lambda a, w: mapped(f)(a, w).sum()
    h = {'jit': g, 'grad': jax.grad(g, (0, 1)),
         'jvp': lambda *args: jax.jvp(g, args, args),
         'vmap': lambda a, w: jax.vmap(g, (None, 0))(a, w[None])}[transform]
    before = verify.checked
    jax.jit(h)(ROWS, np.float32(2))
    self.assertGreater(verify.checked - before, 5)
    before = verify.checked
    with jax.enable_checks(False):
      jax.jit(lambda *args: h(*args))(ROWS, np.float32(2))
    self.assertEqual(verify.checked, before)
