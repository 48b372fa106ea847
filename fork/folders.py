"""Where the tool finds what it brings, which stack it takes, and where it keeps what it makes of a checkout."""

from __future__ import annotations

from pathlib import Path

from fork.errors import ForkError

PACKAGE = Path(__file__).resolve().parent
# A wheel has in the package what lies around the package in the tool's repository: see setup.py.
BROUGHT = PACKAGE / "share" if (PACKAGE / "share").is_dir() else PACKAGE.parent
REQUIREMENTS = BROUGHT / "requirements.txt"
SERIES = "stack/series.yaml"
# The tool's repository, which is also a stack; None for a tool that was installed from a wheel.
PROJECT = BROUGHT if (BROUGHT / SERIES).is_file() else None


def root(named: Path | None) -> Path:
    """The folder of the stack: the one that --root names, or the current one, or the tool's repository."""
    if named is not None:
        return named.resolve()
    for folder in (Path.cwd(), PROJECT):
        if folder is not None and (folder / SERIES).is_file():
            return folder
    way = "name the folder of a stack by --root, or a branch of PyTorch by --checkout"
    raise ForkError(f"{Path.cwd()} has no {SERIES}: {meant() or way}")


def meant() -> str:
    """What to write in a folder of PyTorch's sources to take their branch; empty in another folder."""
    paths = ("torch/csrc", "aten/src/ATen/native/native_functions.yaml")
    inside = all(Path(path).exists() for path in paths) and not Path(SERIES).is_file()
    return "to take the branch of this PyTorch, write `--checkout .` before the command" if inside else ""


def checkouts(named: Path | None) -> Path:
    """The folder for the stacks and the builds of checkouts: below --root, or where this user's caches are."""
    if named is not None or PROJECT is not None:
        return root(named or PROJECT) / "build/checkouts"
    from platformdirs import user_cache_path  # Here, since other commands do without this library.

    return user_cache_path("torch-fork") / "checkouts"
