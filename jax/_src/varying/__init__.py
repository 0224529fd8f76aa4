# SPDX-License-Identifier: Apache-2.0
"""Varying types in a ``shard_map``, of the releases that have them.

``types`` reads and changes the varying axes in a type, ``carry_types`` where
upstream compares two, ``reduced`` those that a value is (un)reduced over;
``verify`` holds the types of a jaxpr against what is ``required``, where JAX
tests itself (``sources`` are the inputs that results are); ``flow`` finds what
each value of a traced jaxpr varies over; ``retype`` builds the jaxpr again at
these types, ``retype_values`` at those of the values it is about to be given;
``outdated`` says what that can't make right, ``retrace`` when a function must
be traced again, ``casts`` what a user's own casts are there, ``backward`` what
a backward rule that runs is told, ``bind`` binds a loop or branch;
``divergence`` and ``origin`` (by ``origin_walk``) explain refusals. ``rules``
know single primitives, ``autodiff`` what differentiation makes of them. Each
stands on those before it in ``tests/build/layout_test.py``. Begin with
``types``, then ``flow``.

What a module knows of one primitive is in a dictionary, by the primitive's
name, and ``enter_rules`` brings it to the module that asks: ``FLOW_RULES`` to
``flow``, ``BUILDERS`` to ``retype``, ``OPERANDS`` to ``bind``,
``PROMOTERS`` to ``retrace``, ``DIVERGENCE_CHECKS`` to ``flow`` again, and
``BELIEVED`` to ``required``.

Words: a value *varies* along the mesh axes that its type names, as devices
along them may have other values. To *cast* (or *promote*) makes a value vary
along more axes; to *widen* does so to a ref's content; to *type* gives a
primitive's results their axes; to *solve* finds the least axes that hold, as a
fixpoint of the flow rules; to *rebuild* makes a jaxpr again at its solution, to
*retype* does so at other types that are given; to *trace again* (*retrace*)
runs the user's function once more; to *bind* gives an equation to a trace;
devices *diverge* (or part) where a predicate varies; to *verify* compares types
with what is required; to *check* raises an error if something is wrong, and to
*refuse* raises it, with what to write.
"""
from __future__ import annotations

from jax._src.mend import releases

# Of two that have a rule for the same primitive the later one counts.
RULES = ('rules.calls', 'rules.collectives', 'rules.shard_map',
         'rules.agreeing_predicates', 'rules.branches', 'rules.loops',
         'rules.refs', 'rules.hijax', 'rules.kernels', 'rules.random_keys',
         'rules.solves', 'divergence', 'autodiff.staged_rules',
         'autodiff.hijax_rules')


def enter_rules() -> None:
  """Fills the tables of rules, once, when JAX has defined its primitives.

  A build of some patches only lacks modules, as does one for a release that
  lacks the primitives.
  """
  # They import core.
  from jax._src.varying import bind, flow, required, retrace, retype
  tables = {'FLOW_RULES': flow.rules, 'BUILDERS': retype.builders,
            'OPERANDS': bind.operands, 'PROMOTERS': retrace.promoters,
            'DIVERGENCE_CHECKS': flow.divergence_checks,
            'BELIEVED': required.believed}
  for name in RULES:
    module = releases.optional_module(f'{__name__}.{name}')
    for table, entries in tables.items():
      entries.update(getattr(module, table, {}))
