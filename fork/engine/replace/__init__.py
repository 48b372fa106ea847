"""Puts changed sources of PyTorch in the place of the base's.

    decide: what the change needs compiled, by the texts     headers: which names a header changes
    search: compiles it, with its text before, and asks      trace: who in the base still reaches what differs
    jumps, locals: the base's own copy jumps to the new one  hidden, variables: the new one uses what the base hides

How a branch runs on a wheel (guide/how_a_branch_runs.md) has the picture.
"""
