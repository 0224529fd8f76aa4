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
"""Which argument became which parameter of a lowered or compiled module.

``entries`` are what the answer consists of, ``entry_function`` reads the
module, ``map`` puts the two together, ``values`` makes the values to feed from
the arguments, and ``stages`` gives ``Lowered`` and ``Compiled`` their
attributes. Begin with ``map``; a runtime's author with docs/parameter_map.md.
"""
