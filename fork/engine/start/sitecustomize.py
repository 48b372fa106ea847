"""Makes every Python below `fork run` import the fork, even where the current folder is a checkout with its own torch.

Python imports it when it starts, since its folder is in PYTHONPATH.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec

HERE = os.path.dirname(os.path.abspath(__file__))


class Fork:
    """Finds the fork's packages before sys.path is searched, which `python -m` begins with the current folder."""

    def __init__(self, site: str) -> None:
        self.site = site

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self.site]) if name in ("torch", "torchgen", "functorch") else None


if chosen := os.environ.get("TORCH_FORK"):
    sys.meta_path.insert(0, Fork(chosen))

# The environment's own module of this name, in whose place this one was imported.
if own := PathFinder.find_spec(__name__, [folder for folder in sys.path if os.path.abspath(folder) != HERE]):
    sys.modules[__name__] = module_from_spec(own)
    if own.loader:
        own.loader.exec_module(sys.modules[__name__])
