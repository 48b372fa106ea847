"""The base: the installed torch that a fork is built on, found, checked, and never changed."""

from __future__ import annotations

import csv
import difflib
import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from fork import process
from fork.errors import ForkError
from fork.folders import REQUIREMENTS
from fork.lock import alone
from fork.tree import Kind, kind_of

if TYPE_CHECKING:
    from packaging.version import Version

OLDEST = "2.7"
# The folders of torch's wheel; Arm's keeps the libraries of others, such as libgomp, in one of their own.
PACKAGES = ("torch", "torchgen", "functorch", "torch.libs")

# Upstream's folders and where a wheel ships them; the first prefix that fits and exists wins.
WHEEL_FOLDERS = (
    ("aten/src/ATen/native/", "torchgen/packaged/ATen/native/"),
    ("aten/src/ATen/templates/", "torchgen/packaged/ATen/templates/"),
    ("tools/autograd/", "torchgen/packaged/autograd/"),
    ("aten/src/ATen/", "torch/include/ATen/"),
    ("c10/", "torch/include/c10/"),
    ("torch/csrc/", "torch/include/torch/csrc/"),
    ("torch/headeronly/", "torch/include/torch/headeronly/"),
    ("torch/nativert/", "torch/include/torch/nativert/"),
    ("caffe2/", "torch/include/caffe2/"),
    ("torch/", "torch/include/torch/"),
    ("torch/", "torch/"),
    ("functorch/", "functorch/"),
    ("torchgen/", "torchgen/"),
)


# Its names are those of Probe.
PROBE = """
import json, sysconfig, torch
flags = ((n, getattr(torch._C, f"_PYBIND11_{n}", None)) for n in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"))
print(json.dumps({
    "include": sysconfig.get_path("include"),
    "suffix": sysconfig.get_config_var("EXT_SUFFIX"),
    "definitions": [f'PYBIND11_{n}="{v}"' for n, v in flags if v],
    "architectures": getattr(torch._C, "_cuda_getArchFlags", str)() or "",
    "config": torch.__config__.show(),
    "commit": torch.version.git_version or "",
    "bindings": dir(torch._C),
}))
"""


@dataclass(frozen=True)
class Probe:
    """Where Python's headers are and how its extensions end; and how torch was built: pybind11's flags, the GPUs, the
    compiler's flags, the commit; and what its module of bindings has."""

    include: str
    suffix: str
    definitions: list[str]
    architectures: str
    config: str = ""
    commit: str = ""
    bindings: Sequence[str] = ()


@dataclass(frozen=True)
class Base:
    """An installed torch: the interpreter that imports it and the folder it lies in."""

    python: Path
    site: Path
    version: str
    dist_info: Path

    @cached_property
    def cuda(self) -> str | None:
        """The CUDA release that this torch was built with, None for a CPU build."""
        found = re.search(r"^cuda\b.*= '(.+)'$", (self.site / "torch/version.py").read_text(), re.MULTILINE)
        return found[1] if found else None

    @cached_property
    def probe(self) -> Probe:
        """What only the base's own Python can say; disk.py remembers it, since the import of torch takes seconds."""
        variables = process.outside() | {"TORCH_FORK": str(self.site)}
        failed = f"torch {self.version} in {self.site} cannot be imported"
        return Probe(**json.loads(process.run([self.python, "-c", PROBE], failed, env=variables, cwd="/")))

    @property
    def torch(self) -> Path:
        return self.site / "torch"

    def wheel_path(self, upstream: str) -> str | None:
        """Where the wheel keeps the file that upstream has at this path, None where it ships none."""
        return next((path for path in _places(upstream) if (self.site / path).is_file()), None)

    def read(self, upstream: str) -> str | None:
        """The text of the file that upstream has at this path, None where the wheel ships none."""
        shipped = self.wheel_path(upstream)
        return (self.site / shipped).read_text() if shipped else None

    def new_path(self, upstream: str) -> str | None:
        """Where a wheel would ship a file that the stack adds, None if nowhere: headers, Python, and what it has the
        like of beside it."""
        kind, like = kind_of(upstream), f"*{PurePosixPath(upstream).suffix}"
        for path in _places(upstream):
            known = kind in (Kind.HEADER, Kind.PYTHON, Kind.PROGRAM)
            if path.startswith("torch/include/") == (kind is Kind.HEADER) and (
                known or (kind is Kind.DATA and any((self.site / path).parent.glob(like)))
            ):
                return path
        return None

    def nearest(self, upstream: str) -> str | None:
        """The upstream path of a shipped file in the same folder, of the same kind and of nearly the same name."""
        wished = PurePosixPath(upstream)
        for path in _places(upstream):
            names = [file.name for file in (self.site / path).parent.glob(f"*{wished.suffix}")]
            for name in difflib.get_close_matches(wished.name, names, n=1, cutoff=0.85):
                return str(wished.with_name(name))
        return None

    @cached_property
    def record_text(self) -> str:
        """Names, by their hashes, all files of the installed package."""
        return (self.dist_info / "RECORD").read_text()

    def refuse_replaced(self) -> None:
        """Raises where another torch has been installed in its place since this process read its RECORD."""
        record = self.dist_info / "RECORD"
        if not record.is_file() or record.read_text() != self.record_text:
            raise ForkError(f"torch {self.version} in {self.site} was replaced during the build: run the command again")

    @cached_property
    def record(self) -> dict[str, tuple[str, str]]:
        """RECORD of the installed package: path -> (hash, size)."""
        return {row[0]: (row[1], row[2]) for row in csv.reader(self.record_text.splitlines()) if len(row) == 3}


def _places(upstream: str) -> Iterator[str]:
    """Where a wheel can have the file that upstream has at this path."""
    return (shipped + upstream.removeprefix(top) for top, shipped in WHEEL_FOLDERS if upstream.startswith(top))


def installed(python: Path | None = None) -> Base:
    """The torch of an interpreter (default: the one running), whatever fork it may see first."""
    search = sys.path
    if python:
        code = "import sys; print('\\n'.join(sys.path))"
        said = process.run([python, "-c", code], f"{python} does not run", env=process.outside(), cwd="/")
        search = said.splitlines()
    seen = [path for path in search if path and not Path(path, "fork.json").is_file()]
    return _describe(python or Path(sys.executable), seen)


def _describe(python: Path, search: list[str]) -> Base:
    lost = ""
    for found in importlib.metadata.distributions(name="torch", path=search):
        info = Path(str(found._path))  # type: ignore[attr-defined]  # the one public way to it is 3.12's
        site = info.parent
        if not (site / "torch/version.py").is_file():
            lost = lost or found.version.partition("+")[0]
            continue
        if release(found.version) < release(OLDEST):
            raise ForkError(f"torch {found.version} in {site} is too old: install torch {OLDEST} or later")
        if not (site / "torchgen/packaged").is_dir():
            raise ForkError(f"torch {found.version} in {site} lacks torchgen/packaged: install torch from its wheel")
        return Base(python, site, found.version, info)
    if lost:
        again = f"`{python} -m pip install --force-reinstall --no-deps torch=={lost}`"
        raise ForkError(f"torch {lost} is installed for {python} and its files are gone: bring them back by {again}")
    raise ForkError(f"no torch is installed for {python}: run `{python} -m pip install torch==2.13.0`")


def obtain(version: str, cuda: str, bases: Path) -> Base:
    """That release of torch in a virtual environment of its own under `bases`, installed when it is not there."""
    version = full(version)
    # `==` lets an index that has both prefer its CPU build; `===` is the release as published, with CUDA on Linux.
    pin = f"torch==={version}" if cuda == "on" else f"torch=={version}"
    home = bases / (version + ("-cuda" if cuda == "on" else ""))
    python = home / "bin/python"
    with alone(bases / f"{home.name}.lock", f"torch {version} is being installed"):
        if not (home / "complete").exists():
            _install(home, version, pin)
    return installed(python)


def full(version: str) -> str:
    """The release that a version names: 2.13 is 2.13.0."""
    try:
        wished = release(version)
    except ValueError as error:
        raise ForkError(f"torch {version}: expected a release such as 2.13.0") from error
    if wished < release(OLDEST):
        raise ForkError(f"torch {version}: the oldest release served is {OLDEST}")
    local = f"+{wished.local}" if wished.local else ""
    return version if wished.is_prerelease else f"{wished.major}.{wished.minor}.{wished.micro}{local}"


def release(version: str) -> Version:
    """A version that compares as pip compares it; raises ValueError where it is none."""
    from packaging.version import Version  # Here, since commands that build nothing do without this library.

    return Version(version)


def _install(home: Path, version: str, pin: str) -> None:
    shutil.rmtree(home, ignore_errors=True)
    print(f"base     getting torch {version} into {home}", flush=True)
    pip = [str(home / "bin/python"), "-m", "pip", "install", "--quiet"]
    for command in ([sys.executable, "-m", "venv", str(home)], [*pip, pin], [*pip, "-r", str(REQUIREMENTS)]):
        done = process.attempt(command)
        if done.returncode:
            shutil.rmtree(home, ignore_errors=True)
            why = _unavailable(version, done) if pin in command else ""
            raise ForkError(why or f"torch {version} could not be installed: {process.pip_error(done)}")
    (home / "complete").touch()


def _unavailable(version: str, done: subprocess.CompletedProcess[str]) -> str:
    """What pip says in several ways of a release that it does not know; nothing where another thing went wrong."""
    known = re.search(r"\(from versions: ([^)]*)\)", done.stderr)
    if known and known[1].strip() in ("", "none"):
        return f"pip finds no release of torch at all, so torch {version} could not be installed: is there a network?"
    if known:
        return f"pip finds no torch {version} for this Python and machine; the newest is {known[1].split(', ')[-1]}"
    if "conflicting dependencies" in done.stderr:
        return f"pip finds no torch {version} that it may install here: choose another release, or see PIP_CONSTRAINT"
    return ""
