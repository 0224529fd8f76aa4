# SPDX-License-Identifier: Apache-2.0
"""Upstream's share: which commits it can have, and its main branch's defects.

`main_branch` keeps the newest commit that was looked at and the defects that it
has, `commits` what each of our commits for it passed, `page` writes these as
docs/upstream.md. What makes the commits is `trees.sending`; what verifies them
is `upkeep.verifying`. Begin with `page`.
"""
