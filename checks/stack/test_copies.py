"""Nothing of the stack is copied from PyTorch: no run of its lines also stands in a row in a file of the wheel."""

from __future__ import annotations

from pathlib import Path

from pytest import mark

from checks.stack.upstream import BASE, SERIES
from fork.weave.file_kinds import edited

RUN = 6  # so many telling lines in a row are a copy
TEXTS = (".py", ".pyi", ".h", ".cuh", ".cpp", ".yaml")


def telling(text: str) -> list[tuple[int, str]]:
    """The lines that say something, with their numbers: neither imports nor bare brackets."""
    lines = ((n, " ".join(line.split())) for n, line in enumerate(text.splitlines(), 1))
    quiet = ("#include", "import ", "from ", "namespace ")
    return [(n, line) for n, line in lines if len(line) > 12 and not line.startswith(quiet)]


def runs(text: str) -> dict[tuple[str, ...], int]:
    """Each run of telling lines, with the number of its first."""
    lines = telling(text)
    return {tuple(text for _, text in lines[n : n + RUN]): lines[n][0] for n in range(len(lines) - RUN + 1)}


def copies(ours: dict[tuple[str, ...], str], site: Path) -> list[str]:
    return [
        f"{ours[run]}: {RUN} lines in a row as in {file.relative_to(site)}:{line}"
        for folder in ("torch", "torchgen", "functorch")
        for file in sorted((site / folder).rglob("*"))
        if file.suffix in TEXTS and "/torch/include/ATen/ops/" not in str(file)
        for run, line in runs(file.read_text(errors="replace")).items()
        if run in ours
    ]


@mark.long
def test_nothing_is_copied_and_a_copy_is_found(tmp_path: Path) -> None:
    ours = {run: f"{edited(file)}:{line}" for file in SERIES.files() for run, line in runs(file.read_text()).items()}
    planted = [line for line in (BASE.site / "torch/overrides.py").read_text().splitlines() if line.strip()][400:412]
    found = copies(ours | dict.fromkeys(runs("\n\n".join(planted)), "planted"), BASE.site)
    assert found and all(line.startswith("planted: ") for line in found)
