# SPDX-License-Identifier: Apache-2.0
"""Varying types in a ``shard_map``, of the releases that have them.

A loop's body or a branch was traced at types that are a lower bound of those
that it has. The least types that agree with themselves are found, operands are
cast to them outside, and the jaxpr is written once more, where it is bound.
Only where a derivative was taken by something that then grew is the trace
itself wrong, and is made again.

``types`` has the sets of axes, and what types spell them; ``context`` what this
thread is about, and what of it tracing caches' keys have; ``flow`` finds the
least ones, ``retype`` writes a jaxpr at them, ``bind`` does both where an
equation is bound, and ``retrace`` and ``outdated`` tell when that isn't enough.
``dependences`` and ``agreement`` know what is the same on all devices though
its type says that it varies, and ``requirements`` what has to be;
``divergence`` and ``origin`` explain refusals; ``verify`` holds types against
the coarse rules of ``mend``. ``rules`` know single primitives, ``autodiff``
what differentiation makes of them. What a
module stands on says ``tests/build/maintenance/layout_test.py``. Begin with
``types``, then ``flow``.

What a module knows of one primitive is in a dictionary, by the primitive's
name, and ``enter_rules`` brings it to the module that asks: ``FLOW_RULES`` to
``flow``, ``BUILDERS`` to ``retype``, ``OPERANDS`` and ``MARKS`` to ``bind``,
``PROMOTERS`` to ``retrace`` and ``BELIEVED`` to ``verify``.

Words: a value *varies* along the mesh axes that its type names, as devices
along them may have other values. To *cast* (or *promote*) makes a value vary
along more axes; to *widen* does so to a ref's content; to *type* gives a
primitive's results their axes; to *solve* finds the least axes that hold, as a
fixpoint of the flow rules; to *rebuild* makes a jaxpr again at its solution, to
*retype* does so at other types that are given; to *trace again* (*retrace*)
runs the user's function once more; to *bind* gives an equation to a trace;
devices *diverge* where a predicate varies; an axis is *trivial* if it has one
device; to *verify* compares types with what is required; to *check* raises an
error if something is wrong, and to *refuse* raises it, with what to write.
"""
from __future__ import annotations

from jax._src.mend import releases

# Of two that have a rule for the same primitive the later one counts.
RULES = ('rules.calls', 'rules.collectives', 'rules.shard_map',
         'rules.compared', 'rules.agreeing_predicates', 'rules.branches',
         'rules.loops', 'rules.refs', 'rules.hijax', 'rules.kernels',
         'rules.random_keys', 'rules.solves', 'autodiff.staged_rules',
         'autodiff.hijax_rules')


def enter_rules() -> None:
  """Fills the tables of rules, once, when JAX has defined its primitives.

  A build of some patches only lacks modules, as does one for a release that
  lacks the primitives.
  """
  # They import core.
  from jax._src.varying import bind, flow, retrace, retype, verify
  tables: dict[str, dict] = {
      'FLOW_RULES': flow.rules, 'BUILDERS': retype.builders,
      'OPERANDS': bind.operands, 'MARKS': bind.marks,
      'PROMOTERS': retrace.promoters, 'BELIEVED': verify.believed}
  for name in RULES:
    module = releases.optional_module(f'{__name__}.{name}')
    for table, entries in tables.items():
      entries.update(getattr(module, table, {}))
