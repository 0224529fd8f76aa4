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
