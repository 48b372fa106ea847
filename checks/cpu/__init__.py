"""The CPU kernels: the rule that says when they run, another compiler, many threads and processes."""
