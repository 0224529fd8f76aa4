"""That the mended wheel is right, by its difference from the pristine one.

`envs` and `sides` make environments that differ by jax alone, `forks` processes
that have imported it; `reproduce` runs the reports' programs, `pytest_run`,
`jobs`, `judging` and `testing` our tests, `upstream` and `verdicts` upstream's,
`clients` other libraries'; `bazel` hands wheel and environment to the Bazel
rules. Begin with `sides`, then `testing`.
"""
