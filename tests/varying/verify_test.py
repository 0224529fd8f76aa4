# SPDX-License-Identifier: Apache-2.0
"""The verifier of types finds each kind of type that is too narrow."""
from unittest import mock

from absl.testing import parameterized
import jax
from jax import export
from jax import lax
from jax._src import config
from jax._src import core
from jax._src.varying import flow
from jax._src.varying import retype
from jax._src.varying import types as vt
from jax._src.varying import verify
from jax.custom_derivatives import linear_call
from jax.experimental import pallas as pl
from jax.extend.core import jaxpr_as_fun
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
import numpy as np
from testing.oracle import MeshTestCase
from testing.sharding import UNCHECKED, shard_map
from varying.testing.common import cast
from varying.testing.common import make_mesh
from varying.testing.common import ships

if jax.__version_info__ >= (0, 9):
  from jax.experimental import hijax
else:
  hijax = None

config.parse_flags_with_absl()

NONE, X = map(frozenset, ['', 'x'])
REFS = ships('jax._src.varying.rules.refs')
SIZES = [(4,), (2, 2), (2, 1), (1, 2)]
WEIGHT = jnp.float32(2.)


def total(x):
  """A value that is equal on all devices, of one that varies over 'x'."""
  return lax.psum(x, 'x')


@jax.custom_jvp
def with_jvp(a, w):
  return total(a) * w


@jax.custom_vjp
def with_vjp(a, w):
  return total(a) * w


@jax.custom_batching.custom_vmap
def with_vmap(a, w):
  return total(a) * w


@with_vmap.def_vmap
def _(size, batched, a, w):
  f = jax.vmap(lambda a, w: total(a) * w, batched, axis_size=size)
  return f(a, w), True


with_jvp.defjvp(lambda p, t: (with_jvp(*p), with_jvp(p[0], t[1])))
with_vjp.defvjp(lambda a, w: (total(a) * w, a),
                lambda a, ct: (a, total(a) * ct))
HiPrim = getattr(hijax, 'HiPrim', getattr(hijax, 'VJPHiPrimitive', None))


def with_operation(a, w):
  class Operation(HiPrim):

    def __init__(self):
      self.in_avals = (jax.typeof(a), jax.typeof(w))
      self.out_aval, self.params = jax.typeof(w), {}
      super().__init__()

    def expand(self, a, w):
      return total(a) * w

    def vjp_fwd(self, nzs_in, a, w):
      return self(a, w), a

    def vjp_bwd_retval(self, a, ct):
      return a, total(a) * ct

  return Operation()(a, w)


def solve(a, w):
  """Solves total(a) * y = w."""
  divide = lambda _, b: b / total(a)
  return lax.custom_linear_solve(lambda y: total(a) * y, w, divide, divide)


def linear(a, w):
  return linear_call(lambda a, w: total(a) * w, lambda a, w: total(a) * w, a, w)


def loop(w, pred, body=lambda c: (c[0] + 1., c[1])):
  return lax.while_loop(pred, body, (w, w))


# What a jaxpr that is held makes of `a`, reduced, and `w`.
HOLDERS = {
    'jit pjit': jax.jit(lambda a, w: total(a) * w),
    'remat2': jax.checkpoint(lambda a, w: total(a) * w),
    'custom_jvp_call': with_jvp,
    'custom_vjp_call custom_vjp_call_jaxpr': with_vjp,
    'custom_vmap_call': with_vmap,
    'linear_call': linear,
    'custom_linear_solve': solve,
    'composite': lax.composite(lambda a, w: total(a) * w, name='mend.test'),
}

# The primitive, and a function of `a` and `b`, which vary, and `w`, which
# doesn't: a jaxpr in which that primitive's first result varies over 'x'.
PROGRAMS = {
    'mul': lambda a, b, w: a * b,
    'select_n': lambda a, b, w: lax.select(a > 0, b, b),
    'sort': lambda a, b, w: lax.sort((a[None], b[None]), num_keys=2),
    'axis_index': lambda a, b, w: lax.axis_index('x'),
    'all_gather': lambda a, b, w: lax.all_gather(a, 'x'),
    'ppermute': lambda a, b, w: lax.ppermute(a, 'x', [(0, 0)]),
    'random_seed': lambda a, b, w: jax.random.key(a.astype(int)),
    'cond': lambda a, b, w: lax.cond(a > 0, lambda w: w + 1, lambda w: w, w),
    'cond of a branch': lambda a, b, w: lax.cond(
        w > 0, lambda a, b, w: a, lambda a, b, w: b, a, b, w),
    'while': lambda a, b, w: loop(w, lambda c: c[0] < a),
    'while of the body': lambda a, b, w: loop(
        a, lambda c: total(c[1]) < 0., lambda c: (c[0] + a, b)),
    'scan': lambda a, b, w: lax.scan(
        lambda c, _: (c + a, None), w, None, length=2),
    'scan of a result': lambda a, b, w: lax.scan(
        lambda _, x: (None, x + a), None, jnp.zeros(2)),
    **{name: lambda a, b, w, f=f: f(a, b) for name, f in HOLDERS.items()},
}
if REFS:
  PROGRAMS.update({
      'new_ref': lambda a, b, w: jax.new_ref(a)[...],
      'get': lambda a, b, w: jax.new_ref(a)[...],
      'get at an index': lambda a, b, w: jax.new_ref(
          jnp.zeros(4))[a.astype(int)],
  })
# How a ref that is made of zeros comes to vary over 'x'.
WRITES = {
    'swap': lambda ref, a: ref.__setitem__(..., a),
    'swap at an index': lambda ref, a: ref.__setitem__(a.astype(int), 1.),
    'addupdate': lambda ref, a: jax.ref.addupdate(ref, ..., a),
    'cond': lambda ref, a: lax.cond(
        a > 0, lambda: ref.__setitem__(..., 1.), lambda: None),
    'while': lambda ref, a: lax.while_loop(
        lambda i: i < a, lambda i: (ref.__setitem__(..., 1.), i + 1.)[1], 0.),
    'scan': lambda ref, a: lax.scan(
        lambda c, x: (ref.__setitem__(..., a), None), None, None, length=2),
    'jit': lambda ref, a: jax.jit(lambda: ref.__setitem__(..., a))(),
}


def body_of(f, mesh, shared=WEIGHT):
  """The jaxpr of f of two rows, one for each device, and of what all have."""
  def g(x, y, w):
    f(x[0], y[0], w)
    return x
  spec = P(mesh.axis_names)
  rows = np.ones(mesh.size, np.float32)
  with jax.enable_checks(False):
    jaxpr = jax.make_jaxpr(shard_map(
        g, mesh=mesh, in_specs=(spec, spec, P()), out_specs=spec))(
            rows, rows, shared)
  return vt.open_jaxpr(jaxpr.eqns[-1].params['jaxpr'])


def narrowed(jaxpr, name, axes=X, last=False):
  """The jaxpr, with an equation's first result that lacks ``axes``."""
  found = [n for n, eqn in enumerate(jaxpr.eqns)
           if vt.name_of(eqn.primitive) in name.split()
           and axes <= vt.varying(eqn.outvars[0].aval)]
  n = found[-1 if last else 0]
  old = jaxpr.eqns[n].outvars[0]
  new = vt.new_var(vt.with_varying(old.aval, vt.varying(old.aval) - axes))
  swap = lambda vs: [new if v is old else v for v in vs]
  eqns = [e.replace(invars=swap(e.invars), outvars=swap(e.outvars))
          for e in jaxpr.eqns]
  return jaxpr.replace(eqns=eqns, outvars=swap(jaxpr.outvars))


class VerifyTestCase(MeshTestCase):

  def assert_narrow(self, name):
    return self.assertRaisesRegex(
        verify.NarrowTypeError, rf'(?s)^{name.split()[0]}.*\n.*report')


class RulesTest(VerifyTestCase):

  @parameterized.product(name=list(PROGRAMS), sizes=[(4,), (2, 2)])
  def test_result(self, name, sizes):
    jaxpr = body_of(PROGRAMS[name], make_mesh(*sizes))
    verify.verify(jaxpr, True)
    wrong = narrowed(jaxpr, name.partition(' of ')[0].partition(' at ')[0],
                     last=True)
    with self.assertRaisesRegex(
        verify.NarrowTypeError,
        r"(?s): result 0 must vary over .*'x'.*The equation is\n.*report"):
      verify.verify(wrong, True)

  def test_axis_of_size_1_counts_for_what_is_computed(self):
    jaxpr = body_of(PROGRAMS['mul'], make_mesh(1, 4))
    with self.assert_narrow('mul'):
      verify.verify(narrowed(jaxpr, 'mul'), True)

  def test_reduction_over_the_other_axis(self):
    jaxpr = body_of(lambda a, b, w: lax.psum(a, 'y'), make_mesh(2, 2))
    verify.verify(jaxpr, True)
    with self.assert_narrow('psum_invariant'):
      verify.verify(narrowed(jaxpr, 'psum_invariant'), True)

  @parameterized.parameters('psum', 'pmax', 'pmin', 'pmean')
  def test_reduced(self, name):
    for axes in ('x', 'y', ('x', 'y')):
      verify.verify(body_of(lambda a, b, w: getattr(lax, name)(a, axes),
                            make_mesh(2, 2)), True)

  def test_what_is_passed_on_doesnt_vary_as_the_predicate_does(self):
    def f(a, b, w):
      i, out = loop(w, lambda c: c[0] < a)
      seen.append(vt.varying(out.aval))
      pair = lax.cond(a > 0, lambda w: (w, a), lambda w: (w, b), w)
      seen.append(vt.varying(pair[0].aval))
    seen = []
    verify.verify(body_of(f, make_mesh(4)), True)
    self.assertEqual(seen, [NONE, NONE])

  @parameterized.product(name=list(WRITES) if REFS else ['swap'],
                         sizes=[(4,), (2, 2)])
  def test_write(self, name, sizes):
    if not REFS:
      self.skipTest('no refs')
    def f(a, b, w):
      ref = jax.new_ref(cast(jnp.zeros(()) if 'index' not in name else
                             jnp.zeros(4), mesh.axis_names))
      WRITES[name](ref, a)
    mesh = make_mesh(*sizes)
    jaxpr = body_of(f, mesh)
    verify.verify(jaxpr, True)
    # The initial value is cast no longer, either.
    value, = (e.outvars[0] for e in jaxpr.eqns if e.primitive is core.pvary_p
              and e.outvars[0] in [v for e in jaxpr.eqns if e.primitive is
                                   core.ref_p for v in e.invars])
    plain = vt.new_var(vt.with_varying(value.aval, NONE))
    jaxpr = jaxpr.replace(eqns=[
        e.replace(outvars=[plain] if e.outvars == [value] else e.outvars,
                  invars=[plain if v is value else v for v in e.invars])
        for e in narrowed(jaxpr, 'new_ref').eqns if e.primitive
        is not core.pvary_p or e.outvars != [value]])
    with self.assertRaisesRegex(
        verify.NarrowTypeError, r'(?s)a ref that it writes to, must vary over'):
      verify.verify(jaxpr, True)

  @parameterized.product(sizes=[(4,), (2, 2)])
  def test_nested(self, sizes):
    # The equation is deep inside.
    def f(a, b, w):
      return jax.jit(lambda a: lax.scan(
          lambda c, _: (jnp.sin(c), None), a, None, length=2)[0])(a)
    jaxpr = body_of(f, make_mesh(*sizes))
    verify.verify(jaxpr, True)
    call, = (e for e in jaxpr.eqns if e.primitive.name in ('jit', 'pjit'))
    inner = vt.open_jaxpr(call.params['jaxpr'])
    loop, = inner.eqns
    held = loop.params['jaxpr']
    inner = inner.replace(eqns=[loop.replace(params=dict(
        loop.params, jaxpr=vt.reclose(held, narrowed(
            vt.open_jaxpr(held), 'sin'))))])
    wrong = jaxpr.replace(eqns=[
        e if e is not call else e.replace(params=dict(
            call.params, jaxpr=vt.reclose(call.params['jaxpr'], inner)))
        for e in jaxpr.eqns])
    with self.assert_narrow('sin'):
      verify.verify(wrong, True)
    # So it is in a shard_map that is looked at from outside.
    whole = jax.make_jaxpr(shard_map(
        jnp.sin, mesh=make_mesh(*sizes), in_specs=P('x'), out_specs=P('x')))(
            np.ones(4, np.float32))
    outer, = whole.eqns
    held = outer.params['jaxpr']
    wrong = vt.open_jaxpr(whole).replace(eqns=[outer.replace(params=dict(
        outer.params, jaxpr=vt.reclose(held, narrowed(
            vt.open_jaxpr(held), 'sin'))))])
    verify.verify(whole, False)
    with self.assert_narrow('sin'):
      verify.verify(wrong, False)


def old_unknown(site, ins):
  """The needs of a primitive that holds a jaxpr, as if it computed."""
  site.operands = list(ins)
  new = flow.union(ins) - flow.union(
      [vt.varying(v.aval) for v in site.eqn.invars])
  site.outs = [vt.varying(v.aval) | new for v in site.eqn.outvars]


def without_predicate(site, ins):
  """A conditional, as if its index were the same everywhere."""
  ops = ins[1:]
  outs = zip(*(region.run(ops) for region in site.regions(
      *site.eqn.params['branches'])))
  site.operands = ins
  site.outs = [flow.union(o) for o in outs]


def without_trips(site, ins):
  """A loop, as if all devices took as many trips."""
  params = site.eqn.params
  cond, body = site.regions(params['cond_jaxpr'], params['body_jaxpr'])
  first = params['cond_nconsts']
  cond.run(ins[:first] + ins[first + params['body_nconsts']:])
  site.operands, site.outs = ins, body.run(ins[first:])


def unseen_write(site, ins):
  site.operands = ins
  site.outs = [flow.union(ins) for _ in site.eqn.outvars]


class DefectsTest(VerifyTestCase):
  """Defects that have been in Mend, put back."""

  def defect(self, name, rule):
    for table, value in ((flow.rules, rule), (retype.builders, retype.copy)):
      self.enter_context(mock.patch.dict(
          table, dict.fromkeys(name.split(), value)))

  def run_at_wider_types(self, f, mesh, *args):
    """f, traced with what doesn't vary, of a value that does."""
    def body(a, b, w):
      jaxpr = jax.make_jaxpr(lambda w: f(a, w))(w)
      jaxpr_as_fun(jaxpr)(b)
    with jax.enable_checks(True):
      return jax.jit(shard_map(
          lambda x, y, w: (body(x[0], y[0], w), x)[1], mesh=mesh,
          in_specs=(P('x'), P('x'), P()), out_specs=P('x')))(*args)

  @parameterized.product(name=list(HOLDERS), sizes=[(4,), (2, 2)])
  def test_result_of_what_is_held_is_not_raised(self, name, sizes):
    rows = np.ones(sizes[0], np.float32)
    args = HOLDERS[name], make_mesh(*sizes), rows, rows, WEIGHT
    self.defect(name, old_unknown)
    with self.assertRaisesRegex(
        verify.NarrowTypeError, rf'^({"|".join(name.split())}) at .*result 0'
        r" must vary over \('x',\) and has the type"):
      self.run_at_wider_types(*args)
    # Without checks it would have been taken, and nothing is verified.
    with mock.patch.object(verify, 'verify', side_effect=AssertionError), (
        jax.enable_checks(False)):
      region = flow.Region(body_of(
          lambda a, b, w: HOLDERS[name](a, w), args[1]))
      region.run([*region.traced[:-1], X])
      self.assertIsNot(retype.rebuild(region), region.jaxpr)

  @parameterized.product(jit=[False, True], sizes=SIZES)
  def test_predicate_of_a_conditional_is_ignored(self, jit, sizes):
    f = shard_map(
        lambda x: lax.cond(x[0] > 0, lambda: x[0] * 0., lambda: 1.)[None],
        mesh=make_mesh(*sizes), in_specs=P('x'), out_specs=P('x'))
    g = shard_map(
        lambda x: lax.cond(x[0] > 0, lambda: WEIGHT, lambda: WEIGHT + 1.)[None],
        mesh=make_mesh(*sizes), in_specs=P('x'), out_specs=P('x'))
    rows = np.arange(np.float32(sizes[0]))
    self.defect('cond', without_predicate)
    with jax.enable_checks(True):
      (jax.jit(f) if jit else f)(rows)
      if sizes[0] == 1:
        (jax.jit(g) if jit else g)(rows)
      else:
        with self.assert_narrow('cond'):
          (jax.jit(g) if jit else g)(rows)

  @parameterized.product(jit=[False, True], sizes=SIZES)
  def test_predicate_of_a_loop_is_ignored(self, jit, sizes):
    f = shard_map(
        lambda x: lax.while_loop(lambda n: n < x[0], lambda n: n + 1, 0.)[None],
        mesh=make_mesh(*sizes), in_specs=P('x'), out_specs=P('x'))
    rows = np.arange(np.float32(sizes[0]))
    self.defect('while', without_trips)
    with jax.enable_checks(True):
      if sizes[0] == 1:
        (jax.jit(f) if jit else f)(rows)
      else:
        with self.assert_narrow('while'):
          (jax.jit(f) if jit else f)(rows)

  @parameterized.parameters('swap', 'addupdate')
  def test_write_is_not_seen(self, name):
    if not REFS:
      self.skipTest('no refs')
    def f(a, w):
      ref = jax.new_ref(jnp.zeros(()))
      if name == 'swap':
        ref[...] = w
      else:
        jax.ref.addupdate(ref, ..., w)
      return ref[...]
    rows = np.ones(4, np.float32)
    self.run_at_wider_types(f, make_mesh(4), rows, rows, WEIGHT)
    self.defect(name, unseen_write)
    with self.assertRaisesRegex(
        verify.NarrowTypeError, f'^{name} .*a ref that it writes to, must'):
      self.run_at_wider_types(f, make_mesh(4), rows, rows, WEIGHT)

  @parameterized.parameters(False, True)
  def test_derivative_of_an_exported_function(self, jit):
    if not ships('jax._src.ahead_of_time.exported_transforms'):
      self.skipTest('no derivatives of exported functions')
    from jax._src.ahead_of_time import exported_transforms  # pylint: disable=g-import-not-at-top
    rule = exported_transforms.derivative_p.abstract_eval
    def by_shape_and_dtype(*avals, **params):
      outs, effects = rule(*avals, **params)
      return [vt.with_varying(a, vt.NO_AXES) for a in outs], effects
    exported = export.export(jax.jit(jnp.sin))(
        jax.ShapeDtypeStruct((), np.float32))
    exported = export.deserialize(exported.serialize(vjp_order=2))
    f = shard_map(
        lambda t, w: jax.jvp(exported.call, (w,), (t[0],))[1][None],
        mesh=make_mesh(4), in_specs=(P('x'), P()), out_specs=P('x'))
    with mock.patch.object(exported_transforms.derivative_p, 'abstract_eval',
                           by_shape_and_dtype), jax.enable_checks(True):
      with self.assert_narrow('call_exported_derivative'):
        jax.make_jaxpr(f)(np.ones(4, np.float32), WEIGHT)


def partial_map(axis, mesh=None):
  """shard_map over one axis, of a mesh or of the one around."""
  return lambda f, **kw: shard_map(f, **kw, axis_names={axis}, **(
      {} if mesh is None else dict(mesh=mesh)))


class UncheckedTest(VerifyTestCase):
  """A shard_map without the check, which is believed."""

  def setUp(self):
    super().setUp()
    if not hasattr(jax, 'shard_map'):
      self.skipTest('a shard_map in another is over Explicit axes there')

  @parameterized.named_parameters(
      ('differs', lambda x, w: x * w, np.arange(4) * (1 + WEIGHT)),
      ('same', lambda x, w: lax.psum(x, 'x'), np.array([2, 5, 4, 7])))
  def test_results_in_another_are_believed(self, f, want):
    def both(x, w):
      return x + partial_map('y')(f, in_specs=(P(), P()), out_specs=P(),
                                  **UNCHECKED)(x, w)
    g = partial_map('x', make_mesh(2, 2))(
        both, in_specs=(P('x'), P()), out_specs=P('x'))
    before = verify.checked
    with jax.enable_checks(True):
      out = jax.jit(g)(np.arange(4, dtype=np.float32), WEIGHT)
    self.assertAllClose(out, want.astype(np.float32))
    self.assertGreater(verify.checked, before)

  def test_checked_one_in_it(self):
    f = partial_map('x', make_mesh(2, 2))(
        lambda x: partial_map('y')(
            lambda a: jnp.sin(a) * lax.psum(a, 'x'), in_specs=P('y'),
            out_specs=P('y'))(x),
        in_specs=P('x'), out_specs=P('x'), **UNCHECKED)
    before = verify.checked
    with jax.enable_checks(False):
      jaxpr = vt.open_jaxpr(jax.make_jaxpr(f)(np.ones(4, np.float32)))
    verify.verify(jaxpr, False)
    self.assertGreater(verify.checked, before)
    outer, = jaxpr.eqns
    within = vt.open_jaxpr(outer.params['jaxpr'])
    checked, = within.eqns
    wrong = narrowed(vt.open_jaxpr(checked.params['jaxpr']), 'sin',
                     frozenset('y'))
    within = within.replace(eqns=[checked.replace(
        params=dict(checked.params, jaxpr=wrong))])
    with self.assert_narrow('sin'):
      verify.verify(jaxpr.replace(eqns=[outer.replace(
          params=dict(outer.params, jaxpr=within))]), False)


class WalkTest(VerifyTestCase):
  """Programs that are right: it sees the equations, and refuses none."""

  @parameterized.product(sizes=SIZES, transform=['jit', 'grad', 'jvp', 'vmap'])
  def test_looks_at_every_equation(self, sizes, transform):
    def f(x, w):
      y = lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + x.sum() * w, 0.)
      if transform != 'grad':
        y += lax.while_loop(lambda n: n < x[0], lambda n: n + 1, 0.)
      y = lax.cond(x[0] > 0, lambda a: a * w, lambda a: a, y)
      return lax.psum(y, mesh.axis_names)
    mesh = make_mesh(*sizes)
    g = shard_map(f, mesh=mesh, in_specs=(P(mesh.axis_names), P()),
                  out_specs=P())
    rows, w = np.arange(4., dtype=np.float32), WEIGHT
    h, args = {
        'jit': (g, (rows, w)),
        'grad': (jax.grad(g, (0, 1)), (rows, w)),
        'jvp': (lambda *a: jax.jvp(g, a, a), (rows, w)),
        'vmap': (jax.vmap(g), (np.stack([rows, rows]), np.ones(2, np.float32))),
    }[transform]
    before = verify.checked
    with jax.enable_checks(True):
      jax.jit(h)(*args)
    self.assertGreater(verify.checked - before, 20)
    before = verify.checked
    with jax.enable_checks(False):
      jax.jit(lambda *args: h(*args))(*args)
    self.assertEqual(verify.checked, before)

  @parameterized.parameters(False, True)
  def test_what_jax_checks_itself(self, checks):
    # JAX holds an equation's types against the rule that made them.
    f = shard_map(lambda x: jnp.sin(x) * lax.psum(x, 'x'), mesh=make_mesh(4),
                  in_specs=P('x'), out_specs=P('x'))
    with jax.enable_checks(False):
      jaxpr = vt.open_jaxpr(jax.make_jaxpr(f)(np.ones(4, np.float32)))
    before = verify.checked
    with jax.enable_checks(checks):
      core.check_jaxpr(jaxpr)
    self.assertEqual(verify.checked > before, checks)

  def test_each_jaxpr_once(self):
    jaxpr = body_of(PROGRAMS['while'], make_mesh(4))
    before = verify.checked
    verify.verify(jaxpr, True)
    self.assertGreater(verify.checked, before)
    before = verify.checked
    verify.verify(jaxpr, True)
    self.assertEqual(verify.checked, before)

  @parameterized.parameters('declared', 'told apart')
  def test_kernel(self, kind):
    if kind == 'declared' and not hasattr(jax.sharding, 'ManualAxisType'):
      self.skipTest('no declarations')
    if not ships('jax._src.varying.rules.kernels'):
      self.skipTest('kernels are refused')
    def kernel(x_ref, out_ref):
      out_ref[...] = x_ref[...] + lax.axis_index('x').astype(np.float32)
    # What it declares is believed, where it is checked from outside too.
    same = dict(manual_axis_type=jax.sharding.ManualAxisType()) if (
        kind == 'declared') else {}
    f = shard_map(
        lambda x: pl.pallas_call(
            kernel, out_shape=jax.ShapeDtypeStruct((2,), np.float32, **same),
            interpret=True)(x),
        mesh=make_mesh(2), in_specs=P('x'), out_specs=P() if same else P('x'))
    with jax.enable_checks(True):
      jax.make_jaxpr(jax.jit(f))(np.ones(4, np.float32))

  @parameterized.parameters(with_vjp, with_operation)
  def test_linear_part_of_a_derivative(self, f):
    if f is with_operation and not HiPrim:
      self.skipTest('no operations that hold their own rules')
    g = shard_map(lambda a, w: jax.jit(f)(a[0], w), mesh=make_mesh(4),
                  in_specs=(P('x'), P()), out_specs=P())
    with jax.enable_checks(True):
      self.assertAllClose(jax.jit(jax.grad(g, 1))(jnp.arange(4.), WEIGHT),
                          jnp.float32(6.))

  @parameterized.product(sizes=[(4,), (2, 2)])
  def test_derivative_of_a_root(self, sizes):
    def f(x):
      a = lax.psum(x.sum(), mesh.axis_names)
      return lax.custom_root(lambda y: y - a, 0., lambda f, y: y - f(y),
                             lambda g, y: y / g(1.))
    mesh = make_mesh(*sizes)
    g = shard_map(f, mesh=mesh, in_specs=P(mesh.axis_names), out_specs=P())
    with jax.enable_checks(True):
      np.testing.assert_allclose(
          jax.jit(jax.grad(g))(np.ones(4, np.float32)), np.ones(4), rtol=1e-5)

  def test_without_the_check(self):
    f = shard_map(lambda x: lax.axis_index('x') + x, mesh=make_mesh(4),
                  in_specs=P('x'), out_specs=P(), **UNCHECKED)
    with jax.enable_checks(True):
      jax.jit(f)(np.arange(4))
