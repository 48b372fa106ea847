"""The installed torch, and the copy of it that becomes a fork."""
