"""`python -m bench.tool.fixes`: merged bug fixes of PyTorch, written anew on a branch, from red to green on a wheel."""
