# SPDX-License-Identifier: Apache-2.0
"""The ground floor: running programs, keeping what they make, saying so.

Knows nothing of JAX, patches or wheels. `errors` has the one exception that a
user is meant to read, `report` what a user sees, `process` other programs,
`interrupts` how a run is stopped,
`cache` and `bootstrap` the folder where all is kept, `repository` and `pages`
the project's own files. Begin with `errors` and `cache`.
"""
