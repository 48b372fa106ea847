"""Tests of the tool, on stacks of their own."""
