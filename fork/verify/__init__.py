"""Proves that a stack is sound: its files, and each prefix of it, built and tested."""
