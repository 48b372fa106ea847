"""`fork new`: writes the first stack of an operator, which builds and runs at once."""

from __future__ import annotations

import argparse
import functools
import re
import shlex
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from fork import process
from fork.engine.wheel import base as bases
from fork.errors import ForkError
from fork.folders import BROUGHT
from fork.upstream import NATIVE_FUNCTIONS
from fork.weave import yamls

# What PyTorch's suites import beside torch.
SUITES = ("expecttest", "numpy", "pytest", "scipy")
EXAMPLE = "softsign_mul(Tensor a, Tensor b, float alpha=1.0) -> Tensor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a folder that does not exist yet, or is empty")
    parser.add_argument("schema", metavar="SCHEMA", help=f"as in native_functions.yaml: {EXAMPLE!r}")
    parser.add_argument("--explicit", action="store_true", help="with a kernel, a formula and a decomposition too")


def run(args: argparse.Namespace) -> int:
    base = bases.installed()
    # torchgen and Jinja, which come with torch: no other command has to wait for them.
    from fork.new import places, render, schema

    folder: Path = args.folder
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ForkError(f"{folder} is a file, or is not empty: choose a folder that does not exist yet")
    operator = schema.read(args.schema, args.explicit)
    if operator.name in yamls.operators(base.read(NATIVE_FUNCTIONS) or ""):
        raise ForkError(f"torch {base.version} has an operator {operator.name} already: choose another name")
    _refuse_name(base, operator.name)
    operator = replace(operator, title=places.free_title(operator.title, base.torch))
    for path, text in render.stack(operator, args.explicit, base.read).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        print(f"wrote    {folder / path}")
    print(_next(folder, operator.name))
    return 0


def _refuse_name(base: bases.Base, name: str) -> None:
    """Refuses what Python would find something else under, or pytest's -k the tests of other operators."""
    if name in _known(base.python, base.site):
        raise ForkError(f"torch {base.version} has a torch.{name} already, which is no operator: choose another name")
    texts = "\n".join(file.read_text() for file in sorted((BROUGHT / "suites").glob("*.py")))
    for test in re.findall(r"^ *(?:class|def) ([Tt]est_?\w+)", texts, re.MULTILINE):
        if name in test.lower():
            raise ForkError(
                f"{name} is in the name of {test}, which `-k {name}` runs for all operators: choose another"
            )


@functools.lru_cache
def _known(python: Path, site: Path) -> frozenset[str]:
    """What Python's torch has, its modules that nobody has imported yet included."""
    code = "import pkgutil, torch; print(*dir(torch), *(found.name for found in pkgutil.iter_modules(torch.__path__)))"
    variables = process.outside() | {"TORCH_FORK": str(site)}
    return frozenset(
        process.run([python, "-c", code], f"torch in {site} cannot be imported", env=variables, cwd="/").split()
    )


def _next(folder: Path, name: str) -> str:
    """The commands to type from here; the suites are this project's, for any operator."""
    lacking = [package for package in SUITES if find_spec(package) is None]
    fork = f"python -m fork --root {shlex.quote(str(folder))}"
    tests = "test/test_ops.py" if Path.cwd() == BROUGHT else shlex.quote(str(BROUGHT / "test/test_ops.py"))
    installs = "install what the suites need, " if lacking else ""
    lines = [
        *([f"python -m pip install {' '.join(lacking)}"] if lacking else []),
        f"{fork} run -- python -c 'import torch; help(torch.{name})'",
        f"{fork} run -- python {tests} -k {name}",
        f"{fork} check --static",
        f"They {installs}build it, run PyTorch's suites, and say what is left to write.",
    ]
    return "next     " + "\n         ".join(lines)
