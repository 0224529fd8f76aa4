# SPDX-License-Identifier: Apache-2.0
"""Replication rules of shard_map for the base releases that have check_rep.

JAX 0.5 proves which outputs of a ``shard_map`` are replicated with two tables
in ``jax/experimental/shard_map.py``: *check* rules, which type a value, and
*rewrite* rules, which insert ``pbroadcast`` where a replicated value meets a
varying one, so that its transpose sums over the devices in the right place.
The modules here complete both tables:

* ``flow``: what every value's type depends on, each jaxpr looked at once;
* ``type_rules``: types of shard_map, and its rules, out of flows;
* ``reps``, ``refine``, ``equal``: values that vary and are the same everywhere;
* ``proven``: outputs of a derivative that need no other proof;
* ``nested``: a ``shard_map`` within another;
* ``verify``: what the check says, held against coarser rules;
* ``unmapped``, ``mapped``: a ``shard_map`` under ``vmap(spmd_axis_name=)``;
* ``collectives``: how the named-axis primitives fit in;
* ``loops``: ``while_loop`` and ``scan``;
* ``branches``: ``cond`` and ``switch``;
* ``divergence``: collectives that devices would not reach together;
* ``permute``: a ppermute that all devices along its axis reach, others not;
* ``custom``: ``custom_jvp``, ``custom_vjp``;
* ``linear``: ``custom_linear_solve``, ``linear_call`` and their like;
* ``lookup``: a primitive's rules, also when its module was imported later;
* ``extensions``: primitives of other libraries;
* ``refs``: kernels, and loops over references;
* ``complete``: a rule, or the reason for none, for every other primitive.

``shard_map.py`` has them entered at its end, in the order that the package
around this one lists. Begin with ``flow``.
"""
# First, because it imports the modules of this package at its end.
import jax.experimental.shard_map  # noqa: F401
