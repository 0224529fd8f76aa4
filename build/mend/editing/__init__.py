# SPDX-License-Identifier: Apache-2.0
"""From a patch's words to a change of text; looks at no tree, writes no file.

`families` names the rooms, `patches` reads and refuses what is in patches/,
`expected_failures` what its tests must say, `reproductions` its programs,
`edit` is one edit of it, `placing` its places on a release, `syntax` finds
nodes, `edits` turns an edit into a `splice` by one of the `operations`, and
`presence` sees whether its code is there already. Begin with `edit`, then
`edits`.
"""
