# SPDX-License-Identifier: Apache-2.0
"""Maintenance: a look at other releases, patches and bases come and go.

`candidates` tries the series on a jax that is no base, `candidate_report` says
what that means, `lifecycle` starts and retires patches and adds bases,
`maintain` has the commands. Begin with `lifecycle`.
"""
