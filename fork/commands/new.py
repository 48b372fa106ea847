"""`fork new`: writes the first stack of an operator, which builds and runs at once."""

from __future__ import annotations

import argparse
from pathlib import Path

from fork.engine import base as bases
from fork.errors import ForkError
from fork.places import BROUGHT

EXAMPLE = "softsign_mul(Tensor a, Tensor b, float alpha=1.0) -> Tensor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a folder that does not exist yet, or is empty")
    parser.add_argument("schema", metavar="SCHEMA", help=f"as in native_functions.yaml: {EXAMPLE!r}")
    parser.add_argument("--explicit", action="store_true", help="with a kernel, a formula and a decomposition too")


def run(args: argparse.Namespace) -> int:
    base = bases.installed()
    # torchgen and Jinja, which come with torch: no other command has to wait for them.
    from fork.new import places, render, schema

    operator = schema.read(args.schema, args.explicit)
    if operator.name in places.entries(base.read):
        raise ForkError(f"torch {base.version} has an operator {operator.name} already: choose another name")
    folder: Path = args.folder
    if folder.is_dir() and any(folder.iterdir()):
        raise ForkError(f"{folder} is not empty: choose a folder that does not exist yet")
    for path, text in render.stack(operator, args.explicit, base.read).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
        print(f"wrote    {folder / path}")
    print(_next(folder, operator.name))
    return 0


def _next(folder: Path, name: str) -> str:
    """The commands to type from here; the suites are this project's, for any operator."""
    fork = f"python -m fork --root {folder}"
    tests = "test/test_ops.py" if Path.cwd() == BROUGHT else str(BROUGHT / "test/test_ops.py")
    return f"""\
next     {fork} run -- python -c 'import torch; help(torch.{name})'
         {fork} run -- python {tests} -k {name}
         {fork} check --static
         The first builds it, the second runs PyTorch's suites, the third names what is left to write."""
