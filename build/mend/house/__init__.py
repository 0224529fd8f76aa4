# SPDX-License-Identifier: Apache-2.0
"""The project's rules for itself: nothing copied, stale or untyped.

`checking` is `build.py check`, on `originality` (no lines of upstream's) and
`docs` (the pages and CHANGELOG match the patches). `lint` is ruff, mypy, and
the form of the change log. Begin with `checking`.
"""
