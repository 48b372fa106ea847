"""The numerics of PR 4 on other processors and settings than this machine's."""
