# SPDX-License-Identifier: Apache-2.0
"""The series applied: a source tree, a wheel, a checkout, a set of commits.

`tree` applies all edits or none, `in_place` to a tree that exists, `drift`
compares each edit's place with what a person has read, `wheel` builds,
`live_table` (with `live_pieces`) and `live_wheel` make jax-mend's, `backend`
serves pip, `checkout` (with `starlark`) and `export` serve upstream's
maintainers. Begin with `tree`.
"""
