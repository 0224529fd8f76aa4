"""From a patch's words to a change of text; looks at no tree, writes no file.

`families` names the rooms, `patches` reads and refuses what is in patches/,
`edit` is one edit of it, `syntax` finds nodes, `edits` turns an edit into a
`splice`, and `presence` sees whether its code is there already. Begin with
`edit`, then `edits`.
"""
