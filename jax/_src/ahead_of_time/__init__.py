# SPDX-License-Identifier: Apache-2.0
"""Functions that leave the process that traced them, and come back.

Functions that are lowered, compiled, exported, stored and loaded: modules for
what of a function must survive each of these steps. Begin with
``stored_executables``.

Words: to *store* writes an executable to bytes and to *load* reads it back, on
the devices that it is loaded for; to *export* writes a function's module and
types, and to *call* an exported one runs it in another program; to *fill* puts
in a sharding that a traced jaxpr says and nobody wrote; to *attach* keeps what
was found on an object of JAX's; to *note* keeps where an executable came from;
to *start* loads the kernels of jaxlib that a program names; to *register*
enters a type or a rule in a table of JAX's; to *check* or *refuse* raises an
error that says what to write.
"""
