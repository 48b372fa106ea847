"""How the base's libraries hold a symbol, and which of their code reaches it without the dynamic linker's table."""

from __future__ import annotations

import json
import platform
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fork import process
from fork.digest import digest
from fork.engine.compile import toolchain
from fork.engine.wheel import disk
from fork.engine.wheel.base import Base
from fork.errors import ForkError

PROGRAM = Path(__file__).with_name("references.cpp")


@dataclass(frozen=True)
class Caller:
    """A function or table of the base that reaches a symbol, and where it lies; `file` is told where it is local to
    that."""

    name: str
    file: str
    library: str
    begin: int = 0
    end: int = 0


@dataclass(frozen=True)
class Place:
    """Where a library has a function, or a variable or table that it hides: the distance from the library's begin, the
    bytes up to the next function, or of the variable, and other names of the same code."""

    library: str
    offset: int
    room: int
    twins: frozenset[str] = frozenset()
    data: bool = False


@dataclass
class Held:
    """Of the names that were asked for: those that the base exports, binds to itself, or hides; who reaches them
    directly, and who of them calls it; who uses variables and vtables by the table; where its libraries, by name, have
    what they look up; where they have functions, and variables and tables that they hide."""

    exported: set[str] = field(default_factory=set)
    bound: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)
    direct: dict[str, list[Caller]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[str, list[Caller]] = field(default_factory=lambda: defaultdict(list))
    users: dict[str, list[Caller]] = field(default_factory=lambda: defaultdict(list))
    slots: dict[str, set[tuple[str, int]]] = field(default_factory=lambda: defaultdict(set))
    places: dict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))

    def add(self, row: Sequence[str]) -> None:
        """Takes in one line of the program's, of those about a name."""
        what, name, path, *more = row
        library = path.rpartition("/")[2]
        if what == "symbol":
            {"exported": self.exported, "protected": self.bound, "hidden": self.hidden}[more[0]].add(name)
        elif what == "slot":
            self.slots[name].add((library, int(more[0])))
        elif what in ("place", "variable"):
            twins, data = frozenset(more[2].split()), what == "variable"
            self.places[name].add(Place(library, int(more[0]), int(more[1]), twins, data))
        elif not OTHER_PROJECTS.match(more[0]):
            caller = Caller(more[0], more[1], path, int(more[2]), int(more[3]))
            for callers in {"direct": (self.direct,), "calls": (self.direct, self.calls), "uses": (self.users,)}[what]:
                callers[name].append(caller)

    def hides(self, name: str, python: bool) -> Place | None:
        """Where the base has what it hides, for code of the Python bindings or for other code."""
        found = self.places.get(name, set()) if name in self.hidden and name not in self.exported else set()
        # What a C++ program need not load, and nobody knows when a process loads, has nothing for code that is there.
        found = {place for place in found if place.library not in LATE and (python or place.library != BINDINGS)}
        own = [place for place in found if place.library == (BINDINGS if python else NAMES[0])]
        return own[0] if own else next(iter(found)) if len(found) == 1 else None


class Libraries:
    """The libraries of a base whose sources a branch can change; without `gpu`, those for the GPU stay as they are.

    `namesakes` tells how many sources that are of a library for sure have the name of one that may be of none.
    """

    def __init__(
        self, base: Base, work: Path, gpu: bool = True, namesakes: Callable[[str], int] = lambda path: 0
    ) -> None:
        self._namesakes = namesakes
        self._stays = () if gpu else tuple(name for name in NAMES + LATE if "cuda" in name)
        self._paths = [path for name in NAMES + LATE if (path := base.torch / "lib" / name).is_file()]
        self._base, self.work = base, work
        self.gpu = base.cuda is not None
        # All that PyTorch's generators read: their programs, their templates, and the lists of operators.
        kinds = (".py", ".cpp", ".h", ".yaml", ".ini")
        self.generators = [file for file in (base.site / "torchgen").rglob("*") if file.suffix in kinds]
        self._known = Held()
        self._asked: set[str] = set()
        made_of = digest(base.record_text.encode(), PROGRAM.read_bytes())
        self._program, self._kept = work / f"references-{made_of}", work / f"references-{made_of}.json"
        self._answers: dict[str, list[list[str]]] = json.loads(self._kept.read_text()) if self._kept.is_file() else {}
        readelf = [toolchain.which("readelf"), "--sections", "--dynamic"]
        told = {path: process.run([*readelf, path], f"{path} cannot be read") for path in self._paths}
        if bare := next((path for path, said in told.items() if ".symtab" not in said), None):
            raise ForkError(
                f"{bare} lists no hidden symbols, so nothing tells where it has what others call: "
                "take PyTorch's own wheel"
            )
        self._symbolic = next((path for path, said in told.items() if "SYMBOLIC" in said), None)
        self.files: dict[str, int] = defaultdict(int)
        self._having: dict[str, set[str]] = defaultdict(set)
        for _, _, where, file in self._ask(["*"]):
            library = where.rpartition("/")[2]
            self._having[file].add(library)
            self.files[file] += library not in LATE

    def refuse_what_cannot_be_replaced(self) -> None:
        """Raises where nothing takes the place of what the libraries define, or nothing tells who calls it."""
        if (machine := platform.machine()) != "x86_64":
            raise ForkError(f"this machine is {machine}: who calls a changed function is read of x86-64 code alone")
        if self._symbolic:
            said = "was linked with -Bsymbolic, so nothing takes the place of what it defines"
            raise ForkError(f"{self._symbolic} {said}")

    def held(self, reached: Iterable[str], names: Iterable[str]) -> Held:
        """What is known of all names that were asked for; who reaches them only of those in `reached`."""
        wanted = set(reached)
        quiet = {f"?{name}" for name in {*names} - wanted - self._asked}
        fresh = sorted((wanted | quiet) - self._asked)
        self._asked.update(fresh)
        for row in self._ask(fresh):
            # What those export too that stay is for themselves: no other library is linked with them.
            if row[0] not in ("place", "symbol") or row[2].rpartition("/")[2] not in self._stays:
                self._known.add(row)
        return self._known

    def reaches(self, caller: Caller, name: str) -> bool:
        """Whether a function of the base has a variable among its operands: four bytes may look so and be parts of two
        instructions. What no disassembler tells may be true."""
        library = caller.library.rpartition("/")[2]
        places = [place for place in self._known.places.get(name, ()) if place.data and place.library == library]
        bounds = [f"--start-address={caller.begin}", f"--stop-address={caller.end}"]
        command = [toolchain.which("objdump"), "--disassemble", "--no-show-raw-insn", *bounds, caller.library]
        told = process.attempt(command).stdout if places and caller.end else ""
        found = [int(one, 16) for one in re.findall(r"# ([0-9a-f]+) <", told)]
        clear = found and "(bad)" not in told
        return not clear or any(place.offset <= one < place.offset + place.room for place in places for one in found)

    def locals_of(self, file: str) -> list[str]:
        """The functions of a file of the base that no other file sees."""
        return [row[3] for row in self._ask([f"@{file}"])]

    def has_source(self, path: str) -> bool:
        """Whether the base was made of a source of this name; a kernel's has its instruction set's name behind it."""
        name, others = path.rpartition("/")[2], self._namesakes(path)
        return any(self.files.get(name + ending, 0) > others for ending in ENDINGS)

    def late(self, path: str) -> str:
        """The library of a source that the base loads when it is first used, if it is of such a one alone."""
        return "" if self.has_source(path) else next(iter(self._having.get(path.rpartition("/")[2], ())), "")

    def binds(self, path: str) -> bool:
        """Whether a source is of the Python bindings alone."""
        return self._having.get(path.rpartition("/")[2]) == {BINDINGS}

    def _ask(self, names: list[str]) -> list[list[str]]:
        """What the program says of these names; it reads hundreds of megabytes, so its words are kept."""
        fresh = [name for name in names if name not in self._answers]
        if fresh:
            compiler = (toolchain.cxx(), "-O2", "-std=c++20", PROGRAM, "-o")
            toolchain.once(self._program, compiler, f"{PROGRAM.name} does not compile")
            disk.write(self.work, "references.asked", "\n".join([*fresh, ""]))
            command = [self._program, self.work / "references.asked", *self._paths]
            said = process.run(command, "the base's libraries cannot be read")
            own = {name: list[list[str]]() for name in fresh}
            for row in (line.split("\t") for line in NVCC.sub(r"\1.cu", said).splitlines()):
                own.get(row[1], own.get(f"?{row[1]}", [])).append(row)
            self._answers |= own
            disk.write(self.work, self._kept.name, json.dumps(self._answers))
        return [row for name in names for row in self._answers[name]]


# Other projects inside the library call nothing of PyTorch: four bytes of their code only look like a call. The names
# are the compiler's, since there are a hundred thousand of them: of `vtable for dnnl::stream`, `_ZTVN4dnnl6streamE`.
OTHER_PROJECTS = re.compile(
    r"(?:_Z(?:T[VIST]|GV|Z)*N?K?\d+)?"
    r"(?:dnnl|fbgemm|asmjit|Xbyak|onnx|google|tensorpipe|gloo|libkineto|mkl|xnn|cpuinfo|[Ss]leef)"
)
# What nvcc makes of the name of a source, for one architecture or several.
NVCC = re.compile(r"tmpxft_\w+-\d+_([^\t\n]+?)(?:\.compute_\w+)?\.cudafe1\.cpp")
BINDINGS = "libtorch_python.so"
NAMES = ("libtorch_cpu.so", "libc10.so", BINDINGS, "libtorch_cuda.so", "libc10_cuda.so")
# These are loaded when something is used that they have.
LATE = ("libtorch_cuda_linalg.so", "libtorch_nvshmem.so", "libcaffe2_nvrtc.so")
ENDINGS = ("", ".DEFAULT.cpp", ".AVX2.cpp", ".AVX512.cpp")
