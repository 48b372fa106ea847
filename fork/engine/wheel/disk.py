"""The forked package on disk: hard links to a copy of the base, in which every changed file is a new file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from fork import process
from fork.digest import digest
from fork.engine.wheel.base import PACKAGES, PROBE, Base, Probe
from fork.errors import ForkError

# Nobody edits these by hand, and they are four fifths of the wheel. All else is copied, so that what somebody writes
# into a file of the fork does not reach the base.
BINARY = re.compile(r"\.(so|a|pyc)(\.[\d.]+)?$|^[^.]+$")


def remember(base: Base, folder: Path) -> None:
    """Takes from the folder what the base's `probe` said in an earlier process, or leaves it there."""
    name = digest(str(base.python).encode(), base.record_text.encode(), PROBE.encode())
    if (file := folder / f"probe-{name}.json").is_file():
        base.__dict__["probe"] = Probe(**json.loads(file.read_text()))
    else:
        write(folder, file.name, json.dumps(asdict(base.probe)))


def copy(base: Base, site: Path, store: Path) -> None:
    """Links the base's packages into `site`: its binaries themselves, and of all else the copies in `store`."""
    made = store / "RECORD"
    if not made.is_file() or made.read_text() != base.record_text or any(changed_after(store, made.stat().st_mtime)):
        shutil.rmtree(store, ignore_errors=True)
        for package in PACKAGES:
            if (base.site / package).is_dir():
                shutil.copytree(base.site / package, store / package, copy_function=_copy, symlinks=True)
        made.write_text(base.record_text)
        date_last(made, store)
    for package in PACKAGES:
        if (store / package).is_dir():
            _link_all(store / package, site / package)
    # The CUDA libraries find their companions by a path relative to their own.
    for companion in ("nvidia", "cusparselt"):
        if (base.site / companion).is_dir():
            (site / companion).symlink_to(base.site / companion)


def _link_all(source: Path, target: Path) -> None:
    """A folder of hard links to another's files; `cp` takes a tenth of the time that Python does."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if process.attempt(["cp", "--archive", "--link", source, target]).returncode:
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target, copy_function=link, symlinks=True)


def _copy(source: str, target: str) -> None:
    (link if BINARY.search(os.path.basename(source)) else shutil.copy2)(source, target)


def changed_after(site: Path, when: float) -> Iterator[str]:
    """The files of the packages in `site` that a person may edit and that were written after `when`."""
    return (os.path.relpath(path, site) for path, written in _editable(site) if written > when)


def date_last(file: Path, site: Path) -> None:
    """Dates a file as the last one of the packages: the clock may have been set back since others were written."""
    last = max([file.stat().st_mtime, *(written for _, written in _editable(site))])
    os.utime(file, (last, last))


def _editable(site: Path) -> Iterator[tuple[str, float]]:
    """The files of the packages in `site` that a person may edit, and when each was written."""
    for folder, folders, names in (rows for package in PACKAGES for rows in os.walk(site / package)):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for path in (os.path.join(folder, name) for name in names if not BINARY.search(name)):
            yield path, os.stat(path).st_mtime


def check(base: Base, paths: Iterable[str]) -> None:
    """Raises unless the base's files are as its wheel installed them: by their sizes, as a broken copy has others; and
    byte for byte what was written after that, and what upstream has at these paths."""
    later = changed_after(base.site, (base.dist_info / "RECORD").stat().st_mtime)
    hashed = {*filter(None, map(base.wheel_path, paths)), *later}
    for path, (known, size) in base.record.items():
        file = base.site / path
        if not known or path.partition("/")[0] not in PACKAGES:
            continue
        whole = file.is_file() and file.stat().st_size == int(size)
        if whole and path in hashed:
            found = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
            whole = known == f"sha256={found}"
        if not whole:
            raise ForkError(
                f"{file} is not the file that torch {base.version} installed (its RECORD says otherwise): "
                f"reinstall torch with `pip install --force-reinstall torch=={base.version}`"
            )


def link(source: str, target: str) -> None:
    """A hard link, or a copy where the file system has none."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def write(site: Path, path: str, text: str | bytes) -> None:
    """Puts a new file at a path, so that a hard link there, and so the base, keeps its content.

    It comes into its place whole: what is killed, or has no room, leaves no half of a file that is read later.
    """
    target = site / path
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    part.unlink(missing_ok=True)
    part.write_bytes(text.encode(errors="surrogateescape") if isinstance(text, str) else text)
    part.replace(target)


def install_stubs(site: Path, generated: Path) -> None:
    """Adds the operators to the typing files and to the list of signatures that PyTorch's build generates."""
    stubs = json.loads((generated / "stubs.json").read_text())
    functions = "\n".join(line for overloads in stubs["functions"].values() for line in overloads)
    classes = "\n".join(stubs["return_types"].values())
    for path, names, text in (
        ("torch/_C/_VariableFunctions.pyi", stubs["functions"], functions),
        ("torch/_VF.pyi", stubs["functions"], functions),
        ("torch/return_types.pyi", stubs["return_types"], classes),
    ):
        if names and (site / path).is_file():
            base = (site / path).read_text()
            listed = "".join(f'    "{name}",\n' for name in sorted(names) if f'"{name}"' not in base)
            base = base.replace("__all__ = [\n", "__all__ = [\n" + listed, 1)
            write(site, path, f"{base.rstrip()}\n\n{text.rstrip()}\n")
    path = "torch/_C/__init__.pyi"
    if stubs["methods"] and (site / path).is_file():
        head, name, tail = (site / path).read_text().partition("\nclass TensorBase")
        first, line, rest = tail.partition("\n")
        write(site, path, "".join([head, name, first, line, *(f"    {said}\n" for said in stubs["methods"]), rest]))
    path = "torch/testing/_internal/generated/annotated_fn_args.py"
    if (site / path).is_file():
        head, brace, tail = (site / path).read_text().rpartition("}")
        write(site, path, head + "".join(f"    {line}\n" for line in stubs["annotated"]) + brace + tail)
