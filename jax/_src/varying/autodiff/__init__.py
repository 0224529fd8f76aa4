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
"""Derivatives in a ``shard_map`` whose types hold what varies.

``cotangents`` casts the tangents and cotangents that users pass, ``forward``
types tangents, ``transposes`` mends 0.6.0's; ``custom_rules`` casts what the
rules of ``custom_jvp`` and ``custom_vjp`` return, ``pullbacks`` re-types what
``jax.vjp`` gave them, ``staged_rules`` and ``hijax_rules`` make them again in
what is re-typed, ``staged_branches`` transposes conditionals that nothing has
differentiated. They stand on all else in ``varying``. Begin with
``cotangents``, or with docs/differentiation.md.
"""
