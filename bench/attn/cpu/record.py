"""results.json of one processor: new results are merged into it, each with its commit, kernels and torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import torch

from bench.attn.cpu.cases import Case
from bench.documents import lines
from bench.machine import ROOT, processor

# Below this share of another's speed a case counts as slower; a report says how far equal code is apart on the machine.
SLOWER = 0.97
# Ends the name of a column that was measured with PyTorch's switch for huge pages.
PAGES = ", huge pages"
# The column of torch.attn as it runs in turns with SDPA alone. Composition before it would return memory to the system.
BESIDE = "torch.attn beside SDPA"
AVX512_ONLY = r"#if defined\(CPU_CAPABILITY_AVX512\)[^\n]*\n(?:(?!#endif|#else).)*(?:#else\n((?:(?!#endif).)*))?#endif"
FOLDER = ROOT / "guide/bench"


@dataclass(frozen=True)
class Result:
    """Seconds and bytes by column; floor in seconds, for forward and backward."""

    case: Case
    seconds: dict[str, float]
    memory: dict[str, int] = field(default_factory=dict)
    floor: float | None = None
    commit: str = ""
    torch: str = ""
    kernels: str = ""
    """The digest of the kernels that were measured; results are present while the sources have the same one."""
    fused: bool | None = None
    """Whether kernels ran, in a first derivative or without one."""

    def speedup(self, over: str = "composition", pages: str = "") -> float | None:
        """Of torch.attn, with or without the switch for huge pages in both."""
        own = BESIDE if over == "SDPA" and BESIDE in self.seconds else "torch.attn"
        ours, other = (self.seconds.get(name + pages) for name in (own, over))
        return other / ours if ours and other else None

    def is_slower(self, *over: str) -> bool:
        """Than one of these, with or without huge pages."""
        gains = (self.speedup(name, pages) for name in over for pages in ("", PAGES))
        return any(gain is not None and gain < SLOWER for gain in gains)


@dataclass
class Record:
    """What was measured on one processor, under one number of threads and one CPU capability."""

    processor: str
    threads: int
    capability: str
    remark: str = ""
    results: list[Result] = field(default_factory=list)

    @property
    def conditions(self) -> str:
        return f"{self.processor}, {self.threads} threads, capability {self.capability}"

    @property
    def folder_name(self) -> str:
        return "-".join(re.findall(r"[a-z0-9]+", self.processor.lower()))

    @staticmethod
    def read(folder: Path) -> Record:
        plain = json.loads((folder / "results.json").read_text())
        results = [Result(Case(**r.pop("case")), **r) for r in plain.pop("results")]
        return Record(results=results, **plain)

    def write(self, folder: Path) -> None:
        """In the order of the cases."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(lines(dataclasses.asdict(self)))

    def add(self, result: Result) -> None:
        """Takes the place of an earlier result of the same case."""
        kept = [r for r in self.results if r.case != result.case]
        self.results = sorted([*kept, result], key=lambda r: dataclasses.astuple(r.case))

    def find(self, case: Case) -> Result | None:
        return next((r for r in self.results if r.case == case), None)

    def present(self) -> Record:
        """Without results of earlier kernels."""
        now = kernels("cpu", self.capability)
        kept = [r for r in self.results if r.kernels == now]
        return dataclasses.replace(self, results=kept, remark=self.remark if kept else "")


def here() -> Record:
    """An empty record of this machine."""
    return Record(processor(), torch.get_num_threads(), torch.backends.cpu.get_cpu_capability())


@cache
def kernels(device: str, capability: str = "") -> str:
    """A digest of the sources of the kernels of `cpu` or `cuda`.

    Comments, white space and what is compiled for AVX-512 alone, where `capability` is another, do not count.
    """
    native = ROOT / "aten/src/ATen/native"
    shared = [
        path for path in native.glob("*.*") if path.suffix != ".yaml" and (device == "cpu" or "CPU" not in path.name)
    ]
    found = hashlib.sha256()
    for path in sorted((*shared, *(native / device).iterdir())):
        code = path.read_text()
        if capability != "AVX512":
            code = re.sub(AVX512_ONLY, r"\1", code, flags=re.DOTALL)
        code = re.sub(r"//[^\n]*|/\*.*?\*/|\s", "", code, flags=re.DOTALL)
        found.update(f"{path.name} {code}\n".encode())
    return found.hexdigest()[:12]
