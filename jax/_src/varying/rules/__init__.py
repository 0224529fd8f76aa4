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
"""Rules of single primitives for what varies, one module a kin.

``loops``, ``branches``, ``refs`` and ``hijax`` solve and re-type what holds
jaxprs or types; ``primitives`` has the least rule, for all that compute from
their operands, and ``definitions`` gives it to other libraries'; the others
mend one function each. They stand on ``flow``, ``retype`` and ``bind``, one
level up. Begin with ``loops``; to add a primitive, with ``primitives``.
"""
