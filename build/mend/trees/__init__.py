"""The series applied: a source tree, a wheel, a checkout, a set of commits.

`tree` applies all edits or none, `drift` compares each edit's place with what
a person has read, `wheel` builds, `backend` serves pip, `checkout` (with
`starlark`) and `export` serve upstream's maintainers. Begin with `tree`.
"""
