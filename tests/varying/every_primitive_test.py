# SPDX-License-Identifier: Apache-2.0
"""Every registered primitive has a sound rule for what varies (issue 3).

Each primitive that jax registers must be one of these:
  - bound by an example of ``testing.primitives``, on which a generic test shows
    the rule: with any one, or all, of the operands varying, every result varies
    at least along the union of the operands' axes, or the call is refused;
  - given the rule that is right by construction (``primitives.type_by_union``);
  - listed here with the reason why another rule is the right one.
"""
import collections
import gc
import importlib
import pkgutil
import sys
import warnings

import jax
from jax import lax
import jax._src
from jax._src import core
from jax._src import custom_partitioning
from jax._src import test_util as jtu
from jax._src.varying import types as varying_types
from jax._src.varying.rules import primitives as varying_primitives
import jax.experimental
import jax.numpy as jnp
from jax.sharding import Mesh
import numpy as np
from testing.primitives import bind, examples, ONE, V
from testing.sharding import eight_devices, shard_map

jax.config.parse_flags_with_absl()
eight_devices()

REASONS = {
    'a collective or cast: its rule says which axes it adds or removes': '''
        ag_done ag_start
        all_gather all_gather_done all_gather_invariant all_gather_reduced
        all_gather_reduced_start all_gather_start all_to_all all_to_all_done
        all_to_all_start axis_index full_to_shard pbroadcast pbroadcast_done
        pbroadcast_dynamic pbroadcast_start pgather pmax pmin ppermute
        ppermute_done ppermute_start precv preduced psend psum psum_done
        psum_invariant psum_invariant_start psum_start pvary ragged_all_to_all
        reduce_scatter reduce_scatter_done reduce_scatter_start
        reduced_vary_cast reduced_vary_cast_p shard_to_full unreduced_pmax
        unreduced_pmin unreduced_psum unreduced_psum_start
        unreduced_reduce_scatter unreduced_reduce_scatter_start
        vary_unreduced_cast vary_unreduced_cast_p''',
    "typed by the jaxpr that it holds, traced with its operands' types": '''
        call call_hi_primitive
        call_hi_primitive_linearized closed_call scheduling_group
        composite compute_on cond core_map cudnn_fusion custom_dce_call
        custom_fusion custom_jvp_call custom_jvp_call_jaxpr custom_lin
        custom_linear_solve custom_partitioning custom_transpose_call
        custom_vjp_call custom_vjp_call_jaxpr custom_vmap_call eval_jaxpr for
        fused_call fusible jaxpr_call jit linear_call mpmd_map pjit
        program_order remat2 remat_opt run_state scan shard_map vmap while
        xla_metadata_call xla_pmap''',
    "one result per operand, of the operand's type": '''
        add_dependency assert_consumed_value consume copy device_put
        dll_constraint layout_constraint mesh_cast name optimization_barrier
        pin relayout reshard shard_alike sharding_constraint stage tie unpin
        whole with_memory_space_constraint xla_metadata_value''',
    'typed by what it is a function of, which its operands are':
        'agreed compared doubted',
    'reads or writes a Ref, whose type says what varies': '''
        accum_grad_in_ref addupdate array_ref box_get box_set create_linear
        empty_ref free_ref freeze get log_extend log_read mutable_array new_box
        new_log new_ref run_scoped swap''',
    'has no operand that can vary, or no result': '''
        check create_token dce_sink dim_as_value dimension_size empty empty2
        infeed inspect_sharding iota_2x32_shape outfeed platform_index
        shape_assertion unreachable zeros_like''',
    'only stands for something while tracing': '''
        dce_sential from_edtype to_edtype trace_value''',
    'moves arrays between processes, outside of shard_map': '''
        global_array_to_host_local_array host_local_array_to_global_array''',
}
REASON_OF = {n: why for why, names in REASONS.items() for n in names.split()}
# Bound inside a kernel, or in a runtime of its own, where no mesh axis is.
KERNELS = ('jax._src.pallas', 'jax.experimental.pallas',
           'jax.experimental.mosaic', 'jax._src.thunky',
           'jax.experimental.thunky', 'jax._src.tpu.')
NOT_IMPORTED = ('test', 'cloud_tpu_init', 'compilation_cache', '.pathways',
                'serialize_executable', 'mosaic.gpu.examples', 'colocated')


def custom_rules():
  mul = lambda x, y: x * y
  jvp = jax.custom_jvp(mul)
  jvp.defjvp(lambda p, t: (mul(*p), t[0] * p[1] + p[0] * t[1]))
  vjp = jax.custom_vjp(mul)
  vjp.defvjp(lambda x, y: (mul(x, y), (x, y)),
             lambda r, g: (g * r[1], g * r[0]))
  vmap = jax.custom_batching.custom_vmap(mul)
  vmap.def_vmap(lambda n, batched, x, y: (x * y, True))
  partition = custom_partitioning.custom_partitioning(mul)
  partition.def_partition(partition=lambda *_: None,
                          infer_sharding_from_operands=lambda *_: None,
                          sharding_rule='i, i -> i')
  return dict(custom_jvp=jvp, custom_vjp=vjp, custom_vmap=vmap,
              custom_partitioning=partition)


# Functions of two vectors, whose result depends on both.
HOLDERS = dict(
    jit=jax.jit(lambda x, y: x + y),
    remat=jax.checkpoint(lambda x, y: jnp.sin(x * y)),
    cond=lambda x, y: lax.cond(True, lax.add, lax.mul, x, y),
    scan=lambda x, y: lax.scan(lambda c, v: (c, v[0] + v[1]), 0, (x, y))[1],
    linear_call=lambda x, y: jax.custom_derivatives.linear_call(
        lambda r, v: r * v, lambda r, t: r * t, x, y),
    linearized=lambda x, y: jax.linearize(
        jax.jit(lambda x: jnp.sin(x) * y), x)[1](x),
    vmap=jax.vmap(lambda x, y: x * y),
    nested=lambda x, y: jax.jit(jax.checkpoint(jax.jit(lax.mul)))(x, y),
    **custom_rules(),
    **({'composite': lax.composite(lambda x, y: x + y, 'of.this.test')}
       if hasattr(lax, 'composite') else {}),
)


def registered():
  """All primitives there are, with the modules that have them as globals."""
  with warnings.catch_warnings():
    warnings.simplefilter('ignore')
    # On 0.8.0 a module of it that comes first can't be imported by itself.
    importlib.import_module('jax.experimental.pallas.tpu')
    for package in (jax._src, jax.experimental):
      for module in pkgutil.walk_packages(
          package.__path__, package.__name__ + '.', onerror=lambda _: None):
        if not any(part in module.name for part in NOT_IMPORTED):
          try:
            importlib.import_module(module.name)
          except (ImportError, ValueError, AttributeError):
            pass  # needs what isn't installed: registers nothing
  gc.unfreeze()  # what a test is forked with is frozen
  prims = [p for p in gc.get_objects() if isinstance(p, core.Primitive)]
  modules = collections.defaultdict(set)
  for name, module in list(sys.modules.items()):
    if name.startswith('jax'):
      for value in list(vars(module).values()):
        if isinstance(value, core.Primitive):
          modules[value].add(name)
  return {p: modules[p] for p in prims}


def zeros(aval):
  if isinstance(aval, core.AbstractToken):
    return lax.create_token(ONE)
  if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(jnp.zeros((*aval.shape, 2), np.uint32))
  return jnp.zeros(aval.shape, aval.dtype)


def axes_of(x):
  return varying_types.varying(x.aval)


def narrower_results(eqn, axes):
  """Results of ``eqn`` that vary less than its operands, cast to ``axes``."""
  found = []

  def body():
    operands = [core.pvary(zeros(x.aval), a) if a else zeros(x.aval)
                for x, a in zip(eqn.invars, axes)]
    union = frozenset().union(*axes)
    found.extend(
        str(out.aval) for out in bind(eqn, operands)
        if not isinstance(out.aval, core.AbstractToken)
        and not union <= axes_of(out))
    return ()

  mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
  jax.make_jaxpr(shard_map(body, mesh=mesh, in_specs=(), out_specs=()))()
  return found


def choices(eqn):
  """Axes for the operands to vary along: all, each alone, and a mixture."""
  def axes(x, names):
    return () if isinstance(x.aval, core.AbstractToken) else names
  n = len(eqn.invars)
  yield tuple(axes(x, ('x',)) for x in eqn.invars)
  if n > 1:
    for i in range(n):
      yield tuple(axes(x, ('x',)) if i == j else ()
                  for j, x in enumerate(eqn.invars))
    yield tuple(axes(x, ('x',) if j == 0 else ('y',))
                for j, x in enumerate(eqn.invars))


class RulesTest(jtu.JaxTestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    registered()  # imports modules that define options, once for all tests

  def test_examples_follow_the_union_rule(self):
    wrong, tested = [], 0
    for prim, eqns in examples().items():
      if prim.name in REASON_OF:
        continue
      for eqn in eqns:
        for axes in choices(eqn) if eqn.invars else ():
          try:
            narrower = narrower_results(eqn, axes)
          except (ValueError, TypeError, AssertionError) as e:
            mixed = len(set(axes)) > 1
            if not mixed or prim in varying_primitives.typed_by_union:
              wrong.append(f'{prim} refuses {axes}: {e}')
            continue
          tested += 1
          if narrower:
            wrong.append(f'{prim} of operands varying along {axes} gives '
                         f'{narrower}')
    self.assertEmpty(wrong)
    self.assertGreater(tested, 200)

  def test_every_primitive_is_accounted_for(self):
    shown = set(examples()) | varying_primitives.typed_by_union
    unknown = []
    for prim, modules in registered().items():
      kernel = modules and all(m.startswith(KERNELS) for m in modules)
      if prim.name.startswith('vjp_node['):
        continue  # 0.12 makes one per linearised call; it holds that jaxpr
      if prim not in shown and prim.name not in REASON_OF and not kernel:
        unknown.append(f'{prim.name} of {sorted(modules)}')
    self.assertEmpty(
        sorted(unknown), 'Give each an example in testing.primitives, the rule '
        'of primitives.type_by_union of varying.rules, or a reason in REASONS.')

  def test_no_reason_covers_what_is_joined(self):
    names = {p.name for p in varying_primitives.typed_by_union}
    self.assertEmpty(names & set(REASON_OF))

  def test_holders_of_jaxprs_are_typed_by_what_they_hold(self):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ('x', 'y'))
    wrong = []

    def body():
      x, w = core.pvary(jnp.asarray(V), ('x',)), jnp.asarray(V)
      for name, fun in HOLDERS.items():
        got = [axes_of(fun(x, w)), axes_of(fun(w, x)), axes_of(fun(w, w))]
        if got != [{'x'}, {'x'}, set()]:
          wrong.append((name, got))
      return ()

    jax.make_jaxpr(shard_map(body, mesh=mesh, in_specs=(), out_specs=()))()
    self.assertEmpty(wrong)

  def test_an_unknown_primitive_is_noticed(self):
    stray = core.Primitive('of_this_test')
    self.assertIn(stray, registered())
    self.assertNotIn(stray.name, REASON_OF)

  def test_join_of_a_rule_that_looks_at_shapes_alone(self):
    prim = core.Primitive('of_this_test_too')
    prim.multiple_results = True
    prim.def_abstract_eval(
        lambda x, y: [core.ShapedArray(x.shape, x.dtype),
                      core.ShapedArray(y.shape, y.dtype)])
    varying_primitives.type_by_union(prim)
    self.addCleanup(varying_primitives.typed_by_union.discard, prim)
    eqn = jax.make_jaxpr(lambda x, y: prim.bind(x, y))(V, ONE).eqns[0]
    for axes in choices(eqn):
      self.assertEmpty(narrower_results(eqn, axes))
