# Copyright 2026 The Mend Authors.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     https://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
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
