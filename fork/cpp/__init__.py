"""Reads C++ by its text: what it defines, declares and registers, and what of that two texts have otherwise."""
