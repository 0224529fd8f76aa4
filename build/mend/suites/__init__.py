# SPDX-License-Identifier: Apache-2.0
"""Suites that are not ours, and random programs, run on both wheels.

`upstream` runs jax's own tests, `clients` other libraries', `conformance` the
array API's; `verdicts` counts what differs between the wheels. `fuzzing` makes
random programs and compares both with an oracle, `fuzz_summary` counts these.
Begin with `verdicts`, then `upstream`.
"""
