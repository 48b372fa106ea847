"""Reads machine code: of the base's libraries, and of compiled objects."""
