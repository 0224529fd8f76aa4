# SPDX-License-Identifier: Apache-2.0
"""Random programs in shard_map, against an emulation without devices (issue 3).

A program is a tree of statements on names: arithmetic, collectives, branches,
loops, transformed functions and gradients, whose bodies capture what is
outside. Most names are vectors of three float32 numbers; others are carried
through loops and branches only (integers, booleans, keys, weak types, empty
trees). Three readings of a program are compared:
  - its source, run in shard_map with the check on;
  - the same source under vmap with axis names: no mesh, no types, true
    derivatives;
  - the rules of issue 3 on the tree, worked out here on their own: along which
    axes each result may vary at most.
A program fails if it is refused, if a type is coarser than the rules, if
devices differ along an axis that the type leaves out, or if a value or a
gradient differs. A collective stands only where all devices meet it.

What depends on the devices is called in the source by five names, so that the
same text means the same in both:
  - ``custom(kind, f, *rules)``: f with derivative rules that are f's own, which
    the emulation leaves to JAX;
  - ``new_ref(x)``: a ref, in the emulation one for each device;
  - ``meet(x)``: x, where devices meet, as a collective's operand;
  - ``vary(x)``: x, cast to vary along all axes;
  - ``total(g, axes, shared)``: a gradient with respect to what doesn't vary
    along ``axes``, summed over them, as shard_map does by itself; of what is
    the same along ``shared``.

  python3 build/build.py fuzz --programs=500 --seed=1000

The page is docs/proof/fuzzing.md.

Without automatic promotion of carries (patches for control flow) the programs
are straight lines; in 0.5.3, they have no transformations of functions.
"""
import os
from unittest import mock

import jax
from jax._src import test_util as jtu
import numpy as np
from varying.testing import fuzz_shrinking
from varying.testing.common import ships
from varying.testing.fuzz_generator import Generator
from varying.testing.fuzz_program import Block
from varying.testing.fuzz_program import INPUTS
from varying.testing.fuzz_program import Op
from varying.testing.fuzz_running import Case
from varying.testing.fuzz_running import Fault
from varying.testing.fuzz_running import NEW_REF
from varying.testing.fuzz_running import drawn
from varying.testing.fuzz_running import emulate
from varying.testing.fuzz_running import inputs
from varying.testing.fuzz_running import source_of
from varying.testing.fuzz_shrinking import report
from varying.testing.fuzz_shrinking import shrunk

jax.config.parse_flags_with_absl()

PROGRAMS = int(os.environ.get('MEND_FUZZ_PROGRAMS', 5))
# From 0 on there is one that XLA of 0.6.0 aborts on, check or no check.
SEED = int(os.environ.get('MEND_FUZZ_SEED', 20))
CONTROL_FLOW = any(
    map(ships, ('jax._src.varying.flow', 'jax._src.replication.rules')))
if jax.__version_info__ < (0, 6):
  # Its CPU runtime crashes on collectives in nested loops, check on or off.
  os.environ['XLA_FLAGS'] = os.environ.get('XLA_FLAGS', '') + (
      ' --xla_cpu_use_thunk_runtime=false')


@jtu.with_config(jax_numpy_dtype_promotion='standard',
                 jax_numpy_rank_promotion='allow')
class FuzzTest(jtu.JaxTestCase):

  def faults(self, seeds, control_flow):
    # A re-evaluated jaxpr can be typed more coarsely than its values are, to
    # which nothing but the internal checks of 0.6.0 objects; users run without.
    old = (0, 6) <= jax.__version_info__ < (0, 7)
    with jax.enable_checks(jax.config.jax_enable_checks and not old):
      found = [drawn(seed, control_flow) for seed in seeds]
    silent = [f'{case.seed}: {fault}' for case, fault in found
              if fault and fault.kind == 'oracle']
    if silent:  # the emulation has failed, and says nothing of shard_map
      print('No verdict on these programs:', *silent, sep='\n')
    self.assertLessEqual(len(silent), max(1, len(found) // 10))
    return [report(case, fault) for case, fault in found
            if fault and fault.kind != 'oracle']

  def test_straight_lines(self):
    faults = self.faults(range(SEED, SEED + (PROGRAMS + 2) // 3), False)
    self.assertEmpty(faults, '\n'.join(faults))

  def test_control_flow(self):
    if not CONTROL_FLOW:
      self.skipTest('needs the patches that promote carries')
    faults = self.faults(range(SEED, SEED + PROGRAMS), True)
    self.assertEmpty(faults, '\n'.join(faults))

  def test_same_programs_for_the_same_seed(self):
    make = lambda seed: source_of(
        Generator(seed, True, False, refs=True).program())
    self.assertEqual(make(3), make(3))
    self.assertNotEqual(make(3), make(4))
    kinds = ('lax.scan', 'lax.cond', 'lax.switch', 'lax.while_loop',
             'lax.fori_loop', 'lax.psum', 'lax.all_gather', 'lax.ppermute',
             'jax.grad', 'jax.vmap', 'jax.custom_vjp', 'jax.random.key',
             'new_ref')
    text = '\n'.join(map(make, range(60)))
    for kind in kinds:
      self.assertIn(kind, text)

  def test_collectives_are_drawn_where_derivatives_are_taken(self):
    cases = [Case(seed, True, True) for seed in range(0, 160, 2)]
    found = {feature for case in cases for feature in case.features()}
    self.assertIn('gradient with a collective', found)
    self.assertIn('call with a collective', found)
    if NEW_REF:
      self.assertContainsSubset({f'shard_map: {layout}' for layout in (
          'nested', 'auto', 'explicit')}, found)

  def test_a_failing_program_is_made_smaller(self):
    def fault_if_scanned(case):
      if 'lax.scan' in source_of(case.program):
        return Fault('refused', 'a scan')
    def length(case):
      fuzz_shrinking.pruned(case.program)  # of scans that nothing reads
      return bool(fault_if_scanned(case)) and len(source_of(case.program))
    case = max((Case(seed, True, True) for seed in range(100)),
               key=length)
    with mock.patch.object(fuzz_shrinking, 'refusal', fault_if_scanned):
      small, fault = shrunk(case, fault_if_scanned(case))
    self.assertLess(len(source_of(small.program)),
                    len(source_of(case.program)) // 3)
    text = report(small, fault)
    self.assertIn('lax.scan', text)
    self.assertIn(f'# Seed {case.seed}: refused: a scan', text)
    compile(text, 'program', 'exec')

  def test_a_lost_axis_is_found(self):
    # The comparison isn't vacuous: the emulation tells devices apart.
    program = Block(list(INPUTS), [Op('t', 'jnp.sin({0})', ['a'])], ['t'])
    stacked, = emulate(program, (2, 2), inputs(0, (2, 2)))
    self.assertFalse(np.allclose(stacked[0], stacked[1]))
    self.assertEqual(program.solve({}, list(INPUTS.values())), [{'x'}])
