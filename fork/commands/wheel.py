"""`fork wheel`: packs a fork as a wheel that pip installs in place of the base's."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from pathlib import Path

from fork import process
from fork.commands import options
from fork.engine.build import Build
from fork.engine.pipeline import make
from fork.engine.wheel import disk
from fork.engine.wheel.base import PACKAGES
from fork.errors import ForkError
from fork.lock import alone


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_arguments(parser, sanitize=False)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the wheel goes (default: build/wheels)")


def run(args: argparse.Namespace) -> int:
    build = options.chosen(args)
    out: Path = (args.out or build.folder / "wheels").absolute()
    if out.exists() and not out.is_dir():
        raise ForkError(f"{out} is not a folder: give another by --out")
    site = make(build).resolve()
    print(f"done     {pack(build, site, out)}", flush=True)
    return 0


def pack(build: Build, site: Path, out: Path) -> Path:
    """The wheel: the fork's packages and the base's metadata under the version `<base>+<stack>`."""
    content = build.home / "wheel"
    without = shutil.ignore_patterns("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    # 2.13.0 becomes 2.13.0+name, and 2.13.0+cpu becomes 2.13.0+cpu.name.
    version = f"{build.base.version}{'.' if '+' in build.base.version else '+'}{build.series.wheel_suffix}"
    with alone(build.home / "wheel.lock", f"another wheel of {build.home.name} is being packed"):
        shutil.rmtree(content, ignore_errors=True)
        for package in PACKAGES:
            if (site / package).is_dir():
                code = shutil.ignore_patterns("__pycache__")
                shutil.copytree(site / package, content / package, copy_function=disk.link, ignore=code)
        info = content / f"torch-{version}.dist-info"
        shutil.copytree(build.base.dist_info, info, ignore=without)
        metadata = (info / "METADATA").read_text()
        (info / "METADATA").write_text(re.sub(r"(?m)^Version: .*$", f"Version: {version}", metadata, count=1))
        out.mkdir(parents=True, exist_ok=True)
        # Beside its place, and then into it in one rename: a wheel that is there is whole.
        with tempfile.TemporaryDirectory(dir=out, prefix=".packing-") as packing:
            command = [sys.executable, "-m", "wheel", "pack", str(content), "--dest-dir", packing]
            process.run(command, "packing failed")
            shutil.rmtree(content)
            (made,) = Path(packing).glob("*.whl")
            return made.replace(out / made.name)
