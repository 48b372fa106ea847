"""Puts changed sources of PyTorch in the place of the base's."""
