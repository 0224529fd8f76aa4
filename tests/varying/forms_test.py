# SPDX-License-Identifier: Apache-2.0
"""A table of programs, ways to run them, and what they may vary over (issue 3).

Each form is a function of one device's ``a`` (which varies over 'x'), ``b``
(over 'y'), ``c`` (over both) and ``w`` (over neither), with the axes that the
rules of issue 3 give each of its results at most. It is wrapped inside (vmap,
remat, a loop, forward derivatives), transformed outside (grad, jvp, hessian,
vmap, disable_jit) and run on a mesh of its own axes, or of one more that is
left to the compiler, or in a shard_map for each axis, one within the other.
That must be accepted with those axes in out_specs, and values and gradients be
those of vmap with axis names, or where refs are in it those of shard_map with
the check off.

Random combinations are drawn:

  MEND_FUZZ_PROGRAMS=500 MEND_FUZZ_SEED=1000 pytest forms_test.py

Left out: what has no derivative, and what upstream can't do at all, the check
on or off.
"""

import os

import jax
from jax._src import test_util as jtu
from varying.testing.forms import FORMS
from varying.testing.forms_running import fault_of
from varying.testing.forms_running import program
from varying.testing.forms_ways import TRANSFORMS
from varying.testing.forms_ways import WRAPS

jax.config.parse_flags_with_absl()

PROGRAMS = int(os.environ.get('MEND_FUZZ_PROGRAMS', 4))
SEED = int(os.environ.get('MEND_FUZZ_SEED', 0))


@jtu.with_config(
  jax_numpy_dtype_promotion='standard', jax_numpy_rank_promotion='allow'
)
class FormsTest(jtu.JaxTestCase):
  def test_random_combinations(self):
    faults = []
    # 0.6.0's checks object to jaxprs of its own.
    with jax.enable_checks(jax.__version_info__ >= (0, 7)):
      for seed in range(SEED, SEED + PROGRAMS):
        fault = fault_of(*program(seed))
        if fault:
          faults.append(f'{seed} {program(seed)}: {fault}')
    self.assertEmpty(faults, '\n'.join(faults))

  def test_draws_every_kind(self):
    drawn = [program(seed) for seed in range(20000)]
    for n, table in enumerate((FORMS, WRAPS, TRANSFORMS)):
      self.assertEqual({d[n] for d in drawn}, set(table))
