"""Compiles sources, PyTorch's as the base was compiled and the stack's own, and keeps each object for the next time."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from fork import process
from fork.cpp.scan import lines
from fork.digest import digest
from fork.engine.compile import cache, toolchain
from fork.engine.compile.diagnostics import NamesForErrors, Said, errors
from fork.engine.compile.flags import KERNELS, Flags
from fork.engine.wheel import disk
from fork.errors import ForkError
from fork.tree import KERNEL, SOURCES

LOG = "compile.log"
WEEK = 7 * 24 * 3600  # seconds that an object is kept which no build uses


@dataclass(frozen=True)
class Unit:
    """One run of the compiler: a text, the path that it has in PyTorch, and for a kernel its instruction set; whether
    it is the stack's own, or generated for it; and words for the compiler beside those that all have."""

    path: str
    text: str
    capability: str = ""
    own: bool = False
    words: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        return f"{self.path} ({self.capability})" if self.capability else self.path

    @property
    def place(self) -> str:
        """Where the compiler reads it: by a path that is the same in all builds."""
        return f"units{'.' * bool(self.capability)}{self.capability}/{self.path}"


@dataclass(frozen=True)
class Failed:
    """What the compiler found wrong with a unit, its first error first."""

    said: Sequence[Said]

    @property
    def error(self) -> str:
        return self.said[0].error


class Compiler:
    """Compiles with these flags, and tells errors by these names."""

    def __init__(self, flags: Flags, names: NamesForErrors | None = None) -> None:
        self._flags, self.base, self.work = flags, flags.base, flags.work
        self._variables, self.names = cache.variables(flags.work, flags.store), names or NamesForErrors()
        self._stable = (f"{self.base.site}/", f"{self.base.site.resolve()}/", f"{self.base.probe.include}/", "/usr/")
        self.toolkit, self.lacking = flags.device.toolkit, flags.device.lacking  # why it compiles none for the GPU
        self.kinds = (*SOURCES, *([KERNEL] if self.toolkit else []))  # the endings of the sources that it compiles
        self.of_gpu = [f"-D{name}" for name in flags.device.definitions(KERNEL)]  # what it defines for the GPU's
        compilers = [toolchain.cxx(), *([self.toolkit.nvcc] if self.toolkit else [])]
        versions = [process.run([one, "--version"], "the compiler does not run") for one in compilers]
        # Neither ccache nor an object's list of headers tells of one that appears in front of another.
        places = (f"{n} {file.relative_to(top)}" for n, top in enumerate(flags.includes) for file in top.rglob("*"))
        self._headers = f"-DFORK_HEADERS={digest(repr(sorted(places)).encode())}"
        self._about = repr((versions, self.base.record_text, toolchain.settings())).encode()

    def generated(self, folders: Sequence[Path]) -> Compiler:
        """One for generated sources, that finds headers in these folders behind all others."""
        return Compiler(replace(self._flags, behind=[*self._flags.behind, *folders], words=()), self.names)

    def units(self, path: str, text: str, own: bool = False) -> list[Unit]:
        """A kernel is compiled once for each instruction set."""
        capabilities = self._flags.capabilities if path.startswith(KERNELS) else ("",)
        return [Unit(path, text, capability, own, tuple(self._flags.words)) for capability in capabilities]

    def compile_all(self, units: Iterable[Unit], patient: bool = True) -> dict[Unit, Path | Failed]:
        """The object of each unit, or why there is none; several are compiled at a time.

        With `patient`, all are; else the first that fails ends the others, which are not in what it returns.
        """
        units, group = list(dict.fromkeys(units)), process.Together()
        found: dict[Unit, Path | Failed] = {unit: kept for unit in units if (kept := self.kept(unit))}
        todo = [unit for unit in units if unit not in found]
        begun, done = time.monotonic(), 0

        def run(unit: Unit) -> Path | Failed | None:
            nonlocal done
            made = self._compile(unit, group)
            if isinstance(made, Failed) and not patient:
                group.stop()
            if made:
                done += 1
                how = " failed" * isinstance(made, Failed)
                print(f"         [{done}/{len(todo)} {time.monotonic() - begun:.1f}] {unit.named}{how}", flush=True)
            return made

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            try:
                made = list(pool.map(run, todo))
            except BaseException:
                group.stop()
                raise
        return found | {unit: one for unit, one in zip(todo, made) if one}

    def _key(self, unit: Unit) -> str:
        # Neither a comment nor an empty line needs a compiler; the numbers of lines in messages may then be old.
        code = "\n".join(line for line in lines(unit.text) if not line.startswith("#line "))
        return digest(self._about, repr((unit.path, self._command(unit))).encode(), code.encode())

    def kept(self, unit: Unit) -> Path | None:
        """The object that was made of the same before, if it is there."""
        file = self.work / f"objects/{self._key(unit)}.o"
        known = file.with_suffix(".json")
        if not file.is_file() or not known.is_file():
            return None
        inputs: dict[str, str] = json.loads(known.read_text())["inputs"]
        if any(not Path(name).is_file() or _digest(name) != made for name, made in inputs.items()):
            return None
        known.touch()
        return file

    def headers_of(self, made: Path) -> list[str]:
        """The headers that an object was compiled with, but for those of the wheel and of the system."""
        return list(json.loads(made.with_suffix(".json").read_text())["inputs"])

    def planned(self, what: str, why: str, units: Sequence[Unit]) -> str:
        """A plan's line: that units are kept, or how long they took when a build of this folder last compiled them."""
        if all(map(self.kept, units)):
            return f"kept     {what} ({why})"
        seconds = [self._times[unit.named] for unit in units if unit.named in self._times]
        return f"compile  {what} ({why}{f'; {sum(seconds):.0f} s the last time' if seconds else ''})"

    @cached_property
    def _times(self) -> dict[str, float]:
        files = sorted(self.work.parents[1].glob("*/work/objects/*.json"), key=lambda file: file.stat().st_mtime)
        return {about["unit"]: about["seconds"] for about in (json.loads(file.read_text()) for file in files)}

    def forget(self) -> None:
        """Removes the objects that no build has used for a week."""
        for known in (self.work / "objects").glob("*.json"):
            if time.time() - known.stat().st_mtime > WEEK:
                for file in known.parent.glob(f"{known.stem}.*"):
                    file.unlink()

    def preprocessed(self, unit: Unit) -> str:
        """What the compiler reads of a text behind its directives; nothing where it cannot read it."""
        folder = self.work / f"read-{self._key(unit)}"
        disk.write(folder, "read.cpp", unit.text)
        done = process.attempt([*self._command(unit), "-E", "-P", str(folder / "read.cpp")])
        shutil.rmtree(folder)
        return "" if done.returncode else done.stdout

    def _command(self, unit: Unit) -> list[str]:
        compiler = [] if unit.path.endswith(KERNEL) else [str(toolchain.cxx())]
        return [*compiler, *self._flags.of(unit.path, unit.capability, unit.own), self._headers, *unit.words]

    def _compile(self, unit: Unit, group: process.Together) -> Path | Failed | None:
        begun, key = time.monotonic(), self._key(unit)
        disk.write(self.work, unit.place, unit.text)
        part, needs, made = (self.work / f"objects/{key}.{kind}" for kind in ("part.o", "d", "o"))
        made.parent.mkdir(exist_ok=True)
        command = [*cache.launcher(unit.path.endswith(KERNEL)), *self._command(unit)]
        command += ["-MD", "-MF", str(needs), "-c", unit.place, "-o", str(part)]
        done = group.attempt(command, env=self._variables, cwd=self.work)
        if done.returncode:
            return None if group.stopped else self._failed(unit, done)
        names = {str(self.work / name) for name in listed(needs.read_text())}
        # Those of the wheel, of Python and of the system stay as they are.
        names = {name for name in names if name.startswith(f"{self.work}/") or not name.startswith(self._stable)}
        # nvcc tells the name in the text's `#line` as well, which is the file that somebody edits.
        names = {name for name in names if not name.endswith(f"/{unit.path}")}
        about = {
            "unit": unit.named,
            "seconds": round(time.monotonic() - begun, 2),
            "inputs": {name: _digest(name) for name in sorted(names)},
        }
        made.unlink(missing_ok=True)  # it is never beside what another was made of
        disk.write(self.work, f"objects/{key}.json", json.dumps(about))
        part.replace(made)
        needs.unlink()
        return made

    def _failed(self, unit: Unit, done: subprocess.CompletedProcess[str]) -> Failed:
        """What a unit failed by; raises where that is no error in it, such as of a compiler that was killed."""
        with (self.work / LOG).open("a") as log:
            log.write(f"{unit.named}\n{done.stderr}\n")
        found = errors(done.stderr, self.names, self.work)
        if not found:
            raise ForkError(f"the compiler stopped at {unit.named}, and not by an error in it: {process.reason(done)}")
        return Failed(found)


def listed(needs: str) -> list[str]:
    """The files that a compiler lists for make, behind the name of the object; nvcc has a blank before the colon."""
    _, files = re.split(r"\.o\s*:", needs, maxsplit=1)
    names = re.findall(r"(?:[^\s\\]|\\.)+", files.replace("\\\n", " "))
    return [re.sub(r"\\(.)", r"\1", name).replace("$$", "$") for name in names]


def _digest(name: str) -> str:
    return digest(Path(name).read_bytes())
