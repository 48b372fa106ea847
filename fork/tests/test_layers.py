"""The layers of the tool: a module imports from its own and from those below, and never in a circle."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

from fork.folders import PACKAGE

# From the ground up. A module outside of every layer is one of its own; those that are not named lie at the bottom.
ENGINE = ("wheel", "compile", "build", "binary", "generate", "replace", "link")
LAYERS = (
    *("cpp", "weave", "series", "buildable", "checkout", *(f"engine.{layer}" for layer in ENGINE), "engine"),
    *("verify", "new", "page", "commands", "cli", "__main__"),
)


def modules() -> dict[str, Path]:
    """By their names, those that run in the tool's own process."""
    files = [f for f in PACKAGE.rglob("*.py") if not {"tests", "glue", "share"} & {*f.relative_to(PACKAGE).parts}]
    return {
        ".".join(("fork", *f.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__"): f for f in files
    }


def imports(file: Path) -> Iterator[str]:
    """Whatever a module may import, in functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def height(module: str) -> int:
    inner = module.removeprefix("fork.")
    found = [layer for layer in LAYERS if inner == layer or inner.startswith(f"{layer}.")]
    return LAYERS.index(max(found, key=len)) if found else -1


def test_no_circle_and_no_arrow_up() -> None:
    known = modules()
    graph = {name: {*imports(file)} & known.keys() - {name, "fork"} for name, file in known.items() if name != "fork"}
    up = [
        f"{name} imports {other}" for name, others in graph.items() for other in others if height(other) > height(name)
    ]
    assert len(graph) > 80 and not up
    # A package's own file imports its modules, which do not import it.
    graphlib.TopologicalSorter(graph).prepare()
