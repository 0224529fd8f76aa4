# SPDX-License-Identifier: Apache-2.0
"""Coarse inference of axes, operation by operation.

The oracle of collectives is a run on four devices, where their arguments are
the same: what differs then, the collective made a device's own.
"""
from absl.testing import parameterized
import jax
from jax import lax
from jax._src import core
from jax._src import source_info_util
from jax._src import test_util as jtu
from jax._src.lax import control_flow
from jax._src.lax import parallel
from jax._src.lax import windowed_reductions
from jax._src.mend import coarse
from jax._src.mend import jaxprs
from jax._src.state import discharge
from jax._src.state import primitives as state_primitives
from jax.experimental import io_callback
from jax.experimental import pallas as pl
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec as P
import numpy as np
from testing.sharding import eight_devices, shard_map, UNCHECKED

jax.config.parse_flags_with_absl()
eight_devices()

try:
  from jax import ffi
except ImportError:
  from jax.extend import ffi
V = np.arange(4, dtype=np.float32)
X = frozenset('x')
COLLECTIVES = dict(
    axis_index=lambda v: lax.axis_index('x'),
    ppermute=lambda v: lax.ppermute(v, 'x', [(0, 1)]),
    all_to_all=lambda v: lax.all_to_all(v, 'x', 0, 0),
    reduce_scatter=lambda v: lax.psum_scatter(v, 'x'),
    psum=lambda v: lax.psum(v, 'x'),
    all_gather=lambda v: lax.all_gather(v, 'x'),
)
# They run on no CPU, or on some releases only.
OWN = ('ragged_all_to_all', 'unreduced_reduce_scatter', 'psend', 'precv',
       'pgather')
CALLBACKS = dict(
    io_callback=lambda v: io_callback(lambda x: x, v, v),
    debug_callback=lambda v: jax.debug.callback(lambda x: None, v),
    debug_print=lambda v: jax.debug.print('{}', v),
    ffi_call=lambda v: ffi.ffi_call('not_called', v)(v),
    pallas_call=lambda v: pl.pallas_call(
        lambda x, o: o.__setitem__(..., x[...]), out_shape=v)(v),
)
REDUCERS = dict(
    reduce=lambda v: lax.reduce(v, V[0], lambda a, b: a * b + a, (0,)),
    scatter=lambda v: jnp.asarray(v).at[np.array([1, 2])].add(v[:2]),
    select_and_scatter=lambda v: windowed_reductions._select_and_scatter(
        v, lax.ge, (2,), (2,), [(0, 0)], v[:2], V[0], lax.add),
)


def setting():
  return coarse.Setting(manual=X, opaque=lambda *_: None)


def equations(f, *args):
  return jax.make_jaxpr(f)(*args).jaxpr.eqns


def bound(primitive, **params):
  """An equation of a vector and another one, of any parameters."""
  aval = core.ShapedArray((4,), np.dtype(np.float32))
  return core.new_jaxpr_eqn(
      [jaxprs.new_var(aval)], [jaxprs.new_var(aval)], primitive, params,
      core.no_effects, source_info_util.current())


class CoarseTest(jtu.JaxTestCase):

  @parameterized.parameters(*COLLECTIVES)
  def test_what_a_collective_makes_a_devices_own(self, name):
    mesh = Mesh(np.array(jax.devices()[:4]), ('x',))
    f = shard_map(lambda v: COLLECTIVES[name](v)[None], mesh=mesh, in_specs=P(),
                  out_specs=P('x'), **UNCHECKED)
    rows = np.asarray(jax.jit(f)(V))
    eqn, = equations(f, V)
    inner = jaxprs.open_jaxpr(eqn.params['jaxpr'])
    out, = coarse.of_jaxpr(inner, [coarse.NO_AXES], setting()).outs
    self.assertEqual(out, X if (rows != rows[0]).any() else coarse.NO_AXES)

  def test_what_runs_on_no_cpu(self):
    tested = 0
    for name in OWN:
      primitive = getattr(parallel, f'{name}_p', None)
      if primitive is not None:
        eqn = bound(primitive, axis_name='x', axes='x')
        found = coarse.of_equation(eqn, [coarse.NO_AXES], setting())
        self.assertEqual(found.outs, [X], name)
        tested += 1
    self.assertGreater(tested, 1)

  @parameterized.parameters(*CALLBACKS)
  def test_what_runs_other_code_is_opaque(self, name):
    eqn = equations(CALLBACKS[name], V)[-1]
    self.assertIn(name, (coarse.name_of(eqn.primitive), 'debug_print'))
    self.assertTrue(coarse.is_opaque(eqn))

  def test_what_holds_jaxprs_of_its_own_is_opaque(self):
    for_p = getattr(getattr(control_flow, 'for_loop', None), 'for_p', None)
    infeed_p = getattr(lax, 'infeed_p', None)
    for primitive in (discharge.run_state_p, for_p, infeed_p):
      if primitive is not None:
        self.assertTrue(coarse.is_opaque(bound(primitive)), primitive)

  @parameterized.parameters(*REDUCERS)
  def test_no_reducer_is_held(self, name):
    found = [e for e in equations(REDUCERS[name], V)
             if coarse.name_of(e.primitive).startswith(name)]
    self.assertNotEmpty(found)
    for eqn in found:
      self.assertNotEmpty(list(jaxprs.in_params(eqn.params)))
      self.assertEmpty(coarse.held(eqn))

  @parameterized.parameters(state_primitives.swap_p,
                            state_primitives.addupdate_p)
  def test_what_is_written(self, primitive):
    # Whatever the equation says of its effects.
    found = coarse.of_equation(bound(primitive), [X], setting())
    self.assertEqual(found.writes, {0: X})
    found = coarse.of_equation(bound(lax.neg_p), [X], setting())
    self.assertEmpty(found.writes)
