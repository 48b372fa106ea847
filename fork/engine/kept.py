"""What the tool keeps on disk: forks, releases of torch, and what ccache has; of what each is, and how large."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fork.lock import alone


@dataclass(frozen=True)
class Kept:
    """A folder that can go: its name for a command line, what it holds, and for which torch."""

    name: str
    folder: Path
    of: str
    torch: str = ""

    def size(self) -> int:
        """The bytes that its removal would free: a fork links the files of the base, which stay."""
        names = ((folder, name) for folder, *inner in os.walk(self.folder) for name in itertools.chain(*inner))
        found = [os.lstat(os.path.join(*one)) for one in names]
        links = Counter((one.st_dev, one.st_ino) for one in found)
        own = (one for one in found if stat.S_ISDIR(one.st_mode) or links[one.st_dev, one.st_ino] == one.st_nlink)
        return sum({(one.st_dev, one.st_ino): one.st_blocks * 512 for one in own}.values())

    def remove(self) -> None:
        """Waits for a build that goes on in it."""
        with alone(self.folder / "lock", f"a build of {self.name} is running"):
            shutil.rmtree(self.folder)


def kept(tops: Iterable[Path]) -> Iterator[Kept]:
    """All that lies below these folders of builds, and below those of the checkouts in them."""
    for top in dict.fromkeys(tops):
        yield from _kept(top, "")
        for checkout in sorted((top / "checkouts").glob("*/build")):
            yield from _kept(checkout, f"{checkout.parent.name}/")


def _kept(top: Path, prefix: str) -> Iterator[Kept]:
    for home in sorted((top / "forks").glob("*/")):
        try:
            made = json.loads((home / "current/fork.json").read_text())
        except (OSError, ValueError):
            made = {}
        unnamed = f"{made['commit']} of a stack" if "commit" in made else "a plan, or a build that did not end"
        of = made.get("of", unnamed)
        yield Kept(prefix + home.name, home, of, made.get("base", ""))
    for home in sorted((top / "bases").glob("*/")):
        yield Kept(f"{prefix}bases/{home.name}", home, "a release of torch", home.name)
    for home in sorted(top.glob("generated-*/")):
        yield Kept(prefix + home.name, home, "what PyTorch's generators write for a release")
    if (top / "ccache").is_dir():
        yield Kept(f"{prefix}ccache", top / "ccache", "what was compiled before")
