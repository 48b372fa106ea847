"""The tool's one kind of error: a sentence for the user, never a traceback."""


class ForkError(Exception):
    """Says in one sentence what is wrong, where, and what to do about it."""
