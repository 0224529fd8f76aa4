"""What maintainers do: look at other releases, start, retire and add.

`candidates` tries the series on a jax that is no base, `candidate_report` says
what that means, `lifecycle` starts and retires patches and adds bases,
`maintain` has the commands. Begin with `lifecycle`.
"""
