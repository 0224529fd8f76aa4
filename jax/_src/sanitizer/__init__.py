# SPDX-License-Identifier: Apache-2.0
"""Finds where the devices of a ``shard_map`` differ and should not.

``axes`` infers along which axes values differ by right, where types don't say;
``digests`` compares a value between devices; ``sites`` are the places that are
compared, in words; ``findings`` collects what devices send and writes the
message; ``comparing`` keeps what is pending while a body is evaluated;
``bodies`` evaluates the jaxpr of a shard_map, with comparisons, and
``programs`` what is around it; ``replication`` is the public function.
``annotated`` finds what all values of a program vary over, ``reasons`` why a
cast or a sum stands in it, ``lines`` and ``pictures`` show both on the user's
lines, and ``showing`` is the public function. Each stands on those before it.
Begin with ``replication``, then ``bodies``; or with ``showing``, then
``lines``.

Words: a value should *agree* along the axes that its type doesn't vary along;
a *site* is a place where a value is made that is compared; to *flush* compares
what is pending between devices, in one collective; devices *diverge* where a
predicate varies along more than one device.
"""
