"""`fork build`: builds a fork and, for the project's own stack, makes it the torch of this virtual environment."""

from __future__ import annotations

import argparse
import shlex
import sys
import sysconfig
from pathlib import Path

from fork.commands import options
from fork.engine.build import Build
from fork.engine.pipeline import make
from fork.errors import told_plainly
from fork.folders import PACKAGE, PROJECT

STARTUP = PACKAGE / "engine/wheel/startup.py"
# Python runs the lines of a .pth file at every start.
PTH, LINE = "fork.pth", "import _torch_fork; _torch_fork.choose({site!r}, {base!r})\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser)
    parser.add_argument("--plan", action="store_true", help="tell what would be compiled and why, and compile nothing")
    parser.add_argument(
        "--install",
        action="store_true",
        help="make the fork this environment's torch (the default for the project's own stack in its own folder)",
    )


def run(args: argparse.Namespace) -> int:
    before, behind = options.typed(args)
    build = options.chosen(args)
    if args.plan:
        make(build, planned=True)
        return 0
    make(build)
    own = build.series.root == PROJECT and build.folder == PROJECT / "build" and not args.torch
    if args.install or (own and not build.sanitize):
        print(install(build), flush=True)
    else:
        command = shlex.join(["python", "-m", "fork", *before, "run", *behind])
        print(f"use      `{command} -- COMMAND` runs with it; without that, {sys.executable} has the torch that it had")
    return 0


def install(build: Build) -> str:
    """Makes this virtual environment import the fork; says what it did."""
    if sys.prefix == sys.base_prefix:
        return (
            f"use      `python -m fork run -- COMMAND`, or put {build.site} first in PYTHONPATH "
            "(no virtual environment here)"
        )
    folder = Path(sysconfig.get_path("purelib"))
    line = LINE.format(site=str(build.site), base=str(build.base.dist_info))
    for file, text in ((folder / "_torch_fork.py", STARTUP.read_text()), (folder / PTH, line)):
        with told_plainly(file, "use `fork run` instead"):
            if not file.is_file() or file.read_text() != text:
                file.write_text(text)
    return f"use      {sys.executable} imports it; `rm {folder / PTH}` brings back the base"
