# SPDX-License-Identifier: Apache-2.0
"""Interpreters of jaxprs, and evaluation while tracing, in a ``shard_map``.

``checkify`` passes each device's error into a shard_map and on, ``jet`` takes
Taylor series of what varies, ``compile_time`` evaluates constants while a
shard_map is traced, and ``structures`` compares what ``jax.eval_shape`` says
there. They decide no type: that is ``jax._src.varying``. Begin with
``compile_time``.
"""
