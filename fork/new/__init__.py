"""The first stack of an operator: its schema understood, its files written, its anchors found in the base."""
