# SPDX-License-Identifier: Apache-2.0
"""The ground floor: what the families of modules share.

``releases`` says what a release of JAX has, by named facts, and
``release_types`` what its types have; no other module of ours asks.
``manual_axes`` reads what a type says of manual mesh axes, however the release
spells it; ``traces`` walks the traces and tracers around a value; ``jaxprs``
opens and changes jaxprs; ``anatomy`` knows the parts of loops, branches and
calls, and which primitives are calls, casts and reductions; ``abstract`` finds
facts of values through these; ``coarse`` infers along which axes values may
differ; ``foreign`` tells the primitives that other libraries define;
``permute`` lowers a ppermute that not all devices of the mesh reach;
``manual_maps`` reads and makes shard_maps; ``source_lines`` are the user's,
``user_warnings`` warn there; ``pages`` has the addresses that errors end with;
``jitted`` tells what jit made, and its static arguments. Nothing here imports a
family. Begin with ``releases``.

Words: a release *has* or *takes* what ``releases`` finds in it; to *find* gives
None where there is none; to *declare* axes says, in a result's description,
along which it varies; to *vary* along an axis is to be able to differ between
devices along it; to be *reduced* or *unreduced* over one is as JAX's types say;
a trace *stages* what becomes a jaxpr, and *encloses* those within it; a tracer
*holds* the value that it stands for; to *close* a jaxpr binds its constants; to
*mark* an equation gives it a parameter that its lowering looks at; to *gather*
gives each device what all of them hold.

A patch doesn't name these modules: they ship with each that has a module which
imports them (``ground_floor`` in ``build/mend/editing/families.py``).
"""
