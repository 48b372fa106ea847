"""Faults planted in the stack, each of which a test has to find."""
