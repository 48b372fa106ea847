"""The fork: turns the stack of PRs into a PyTorch that runs, on a wheel or in a source tree."""

__version__ = "0.1.0"
