"""Puts a fork before the installed torch when Python starts; `fork build` copies it beside its .pth file.

It stays small, because every start of the environment's Python runs it, and says what is wrong when torch is imported.
"""

import os
import sys


def choose(site: str, base: str) -> None:
    """Prefers the fork in `site`, which was built on the wheel whose dist-info is `base`, or the one of `fork run`."""
    chosen = os.environ.get("TORCH_FORK")
    if chosen:
        sys.path.insert(0, chosen)
    elif not os.path.isfile(os.path.join(site, "fork.json")):
        sys.meta_path.insert(0, Warn(f"the fork in {site} is gone, so this is the installed torch"))
    else:
        # By a path that no other build has: caches, such as Inductor's, tell what they compiled by it.
        sys.path.insert(0, os.path.realpath(site))
        if not os.path.isdir(base):
            name = os.path.basename(base).rpartition(".")[0]
            sys.meta_path.insert(0, Warn(f"pip has replaced {name}, and this is still the fork of it in {site}"))


class Warn:
    """Finds nothing; says one line when torch is imported."""

    def __init__(self, what: str) -> None:
        self.what = what

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            sys.meta_path.remove(self)
            pth = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fork.pth")
            print(f"torch: {self.what}: run `python -m fork build`, or `rm {pth}`", file=sys.stderr)
