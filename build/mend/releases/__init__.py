# SPDX-License-Identifier: Apache-2.0
"""Upstream's releases that Mend is built on, and the Pythons that they run on.

`bases` reads build/bases.toml, `source` brings a base's source by name and
hash, `interpreters` finds this machine's Pythons. Stands on `ground` alone.
Begin with `bases`.
"""
