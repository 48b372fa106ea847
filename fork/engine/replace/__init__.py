"""Puts changed sources of PyTorch in the place of the base's.

    decide: what the change needs compiled, by the texts     headers: which names a header changes
    search: compiles it, with its text before, and asks      trace: who in the base still reaches what differs
    locals: what no other source sees can jump, too          source: the texts and objects of one

How a branch runs on a wheel (guide/how_a_branch_runs.md) has the picture.
"""
