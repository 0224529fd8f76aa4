# SPDX-License-Identifier: Apache-2.0
"""Programs that move to a mesh, and over Explicit axes from release to release.

Begin with ``explicit_reshard``, the option, and ``reshard_rules``, the specs
that operations must have.
``captured`` is about arrays over Explicit axes that a mapped function uses,
``by_name`` about keyword arguments, ``result_layouts`` about results that the
mesh of the context can't express, ``mesh_error`` about arrays of another mesh
that are refused, ``constraints`` about shardings of outside that are used
inside, ``partitioning`` about functions that say how they are partitioned,
``batched`` about what a batch over a mesh axis maps, ``scattered`` about sums
that are scattered over the other axes, ``inferred_mesh`` about what only its
type places, ``changed_axes`` about axes that are Auto or Explicit for a while,
``mixed_products`` about products with what is on no mesh. Each of these eleven
stands by itself.

Words: a value is *placed* if its type or sharding says on which devices it is,
and a *layout* is how it is split over them. To *reshard* moves a value to
another layout; to *convert* gives the same layout a type of outside or inside
of a shard_map; to *infer* a mesh takes the one that the types can mean; to
*map* or *batch* applies shard_map or vmap; to *capture* uses a value that is no
argument; to *refuse* raises an error that says what to write.
"""
