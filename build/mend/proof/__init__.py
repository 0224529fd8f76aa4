# SPDX-License-Identifier: Apache-2.0
"""The proof that the mended wheel is right: its difference from the pristine.

`venvs` and `environments` make Pythons that differ by jax alone, `fork_servers`
processes that have imported it (`kept` and `pristine_runs` say what one run
leaves to the next); `reproduce` runs the reports' programs,
`pytest_run`, `jobs`, `judging` and `testing` our tests, of which `shares` says
what each release runs; `bazel` hands wheel and environment to the Bazel rules.
Begin with `environments`, then `testing`.
"""
