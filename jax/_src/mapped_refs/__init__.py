# SPDX-License-Identifier: Apache-2.0
"""Refs in functions that are mapped, where no type is in question.

``batched_refs`` gives loops under ``vmap`` the refs that they write to, and
``batched_access`` reads and writes of a ref with a batch axis; ``eager_refs``
takes refs into a ``shard_map`` that isn't under jit. What types say of refs is
``jax._src.varying.rules.refs``. Begin with ``batched_refs``.
"""
