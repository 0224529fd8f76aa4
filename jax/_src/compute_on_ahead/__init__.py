# SPDX-License-Identifier: Apache-2.0
"""Functions of ``compute_on``, ahead of time: lowered, compiled and exported.

``check`` refuses and explains; ``marks`` puts the compute type on every
operation; ``jit`` gives a jitted function an entry of its own in the caches for
each compute type; ``call`` and ``stages`` stand on these: a call, and ``lower``
and its like, under the compute type. Begin with ``stages``. Of arrays in
two memories ``mixed_memories`` words the error, ``implied_memories`` moves what
nobody placed, ``memories`` differentiates; ``transfers`` moves one array.

Words: to *mark* puts the compute type on an operation in the lowered module;
to *enter* a compute type makes it the context's, as the context manager does;
to *trace*, *lower* and *compile* are those of ``jax.stages``; to *move* puts
arrays in another memory space; to *place* gives a type that memory space; to
*keep* (or *remember*) what was made for a function has it made once; to *clear*
forgets it; to *check* or *refuse* raises an error that says what to write.
"""
