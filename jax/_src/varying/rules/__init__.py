# SPDX-License-Identifier: Apache-2.0
"""Rules of single primitives for what varies, one module a kin.

``loops``, ``branches``, ``refs`` and ``hijax`` solve and re-type what holds
jaxprs or types; ``primitives`` has the least rule, for all that compute from
their operands, and ``definitions`` gives it to other libraries'; the others
mend one function each. They stand on ``flow``, ``retype`` and ``bind``, one
level up. Begin with ``loops``; to add a primitive, with ``primitives``.
"""
