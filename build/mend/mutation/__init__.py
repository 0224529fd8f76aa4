# SPDX-License-Identifier: Apache-2.0
"""Mutation testing: does a test fail for each edit that is left out?

`mutants` makes the mutants, `overlays` puts one into an installed jax,
`coverage` knows which tests run its lines, `runner` looks for a test that kills
it, `score` has the command and its table. Begin with `score`.
"""
