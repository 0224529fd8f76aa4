# SPDX-License-Identifier: Apache-2.0
"""Devices in the array API: which there are, and where arrays go.

``devices`` lists them, and checks what ``__array_namespace_info__`` is asked
for; ``argument`` says what may be given as a device; ``placement`` puts what
array functions make there, on which ``traced`` (``x.device`` while x is
traced, a token of ``unknown_device`` where no device is known) and ``keys``
(random keys) stand; ``dlpack`` copies and shares. ``complex_values`` and
``nan_extrema`` correct what is lowered for CPUs, by ``cpu_rules``.
Upstream's ``numpy`` modules and ``lax`` call them. Begin with ``devices``.

Words: to *put* moves an array to a device or a sharding, while a program runs;
to *constrain* has a traced program do it; to *place* is either, whichever the
moment asks for; to *spread* splits an array over several devices; to *fill*
makes an array of one value; to *copy* makes other memory, to *share* (or
*export*, *import*) hands over the same; to *correct* changes what an operation
is lowered to; to *read* an argument finds the device or sharding that it means;
to *check* or *refuse* raises an error that says what to write. A *token* stands
for the device on which a traced program will run; it is *known* once one is.
"""
