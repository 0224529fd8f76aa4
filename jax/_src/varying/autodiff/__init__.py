# SPDX-License-Identifier: Apache-2.0
"""Derivatives in a ``shard_map`` whose types hold what varies.

``cotangents`` casts the tangents and cotangents that users pass, ``forward``
types tangents, ``transposes`` mends 0.6.0's; ``custom_rules`` casts what the
rules of ``custom_jvp`` and ``custom_vjp`` return, ``pullbacks`` re-types what
``jax.vjp`` gave them, ``staged_rules`` and ``hijax_rules`` make them again in
what is re-typed, ``staged_branches`` transposes conditionals that nothing has
differentiated. They stand on all else in ``varying``. Begin with
``cotangents``, or with docs/differentiation.md.
"""
