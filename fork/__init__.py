"""The tool: turns a branch of a checkout, or a stack of PRs, into a PyTorch that runs on an installed wheel."""

__version__ = "0.1.0"
