"""Builds a fork on an installed torch: base, weave, generate, compile, install."""
