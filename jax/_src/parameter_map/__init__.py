# SPDX-License-Identifier: Apache-2.0
"""Arguments, and the parameters of a lowered or compiled module they became.

``entries`` are what the answer consists of, ``entry_function`` reads the
module, ``map`` puts the two together, ``values`` makes the values to feed from
the arguments, and ``stages`` gives ``Lowered`` and ``Compiled`` their
attributes, with ``stored`` for what was loaded or exported. Begin with ``map``;
a runtime's author with docs/parameter_map.md.

Words: an argument is *kept* if it is a parameter of the entry computation, and
*dropped* if not; a value is *captured* from an enclosing trace, or *hoisted* as
a constant; to *donate* a parameter lets a result have its memory, to *alias*
says which; to *forward* returns a parameter as a result; to *update* a mutable
array returns its contents as a result; to *feed* gives a runtime the value of a
parameter; to *solve* finds dimension variables by the arguments' shapes; to
*attach* keeps a map on a ``Compiled``; to *read* takes all else from a module.
"""
