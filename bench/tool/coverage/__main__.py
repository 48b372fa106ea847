"""`python -m bench.tool.coverage TREE`: changes PyTorch's C++ sources on an installed wheel, and tells what came of it.

It draws sources of a checkout of PyTorch (see sample.py). One after another, it puts a change into every function of a
source (plant.py), builds that branch with the tool on this Python's torch, and lets the result train (probe.py). Then
it changes all sources that worked at once, and runs the operators of PyTorch's OpInfo.

* effective: the fork's library has the source's functions, the dynamic linker finds them before the base's, the fork
  works, and no copy of them in the base runs. Traps stand in the base's copies, and the base's code is searched for
  calls and pointers that lead to them.
* refused: the tool says in one sentence why it does not build the change.
* not compiled: the source itself does not compile against the wheel.
* ineffective: a copy in the base can run, so the tool has built something that does not have the change.
* broken: the fork does not work: it ends at the import, or later.

What is known is kept in --out; the next run goes on where this one ended.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path

import torch

from bench.arguments import duration
from bench.documents import fill, markdown_table
from bench.machine import ROOT, commit, processor
from bench.tool.coverage.plant import MARK, plant
from bench.tool.coverage.sample import DEVICE, GROUPS, draw
from bench.tool.coverage.symbols import FUNCTION, Library, reached
from bench.tool.scratch_clone import Branch, Run
from fork.arguments import Parser, at_least, status
from fork.errors import ForkError

PROBE = Path(__file__).parent / "probe.py"
GUIDE = ROOT / "guide/changed_sources.md"
EFFECTIVE, REFUSED, UNCOMPILED, INEFFECTIVE, BROKEN = VERDICTS = (
    "effective",
    "refused",
    "not compiled",
    "ineffective",
    "broken",
)
MANY = 40
"""How many other sources the tool may compile too; its own limit."""
LONGEST = 300
"""Letters of a reason in a table."""
BASES = ("libtorch_cpu.so", "libtorch_python.so", "libc10.so", "libtorch_cuda.so")


@dataclass
class Result:
    """What came of a source: the verdict, why, the seconds of its build, and how many functions were changed."""

    group: str
    verdict: str
    reason: str = ""
    seconds: float = 0.0
    functions: int = 0
    ran: int = 0
    """How many of the changed functions ran."""
    symbols: list[str] = field(default_factory=list)
    """The mangled names of the changed functions."""


@dataclass
class Known:
    """What is known of a tree, and where it was found out."""

    file: Path
    conditions: str
    results: dict[str, Result] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path, conditions: str) -> Known:
        known = cls(file, conditions)
        if file.is_file():
            held = json.loads(file.read_text())
            if held["conditions"] != conditions:
                raise ForkError(f"{file} is of other conditions ({held['conditions']}): give another --out")
            known.results = {path: Result(**result) for path, result in held["results"].items()}
        return known

    def keep(self) -> None:
        rows = {path: asdict(result) for path, result in self.results.items()}
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps({"conditions": self.conditions, "results": rows}, indent=1) + "\n")


@cache
def base() -> list[Library]:
    """The libraries of the installed torch, of which every function has its symbol."""
    files = (Path(torch.__file__).parent / "lib" / name for name in BASES)
    return [Library.read(file) for file in files if file.is_file()]


def build(branch: Branch, paths: Collection[str]) -> tuple[Run, list[str]]:
    """Changes these sources and builds the branch; also the lines that the changes print."""
    branch.reset()
    lines = []
    for path in paths:
        text, said = plant((branch.checkout / path).read_text(), path)
        branch.write(path, text)
        lines += said
    return branch.fork("build", "--many", str(len(paths) + MANY)), lines


@dataclass(frozen=True)
class Outcome:
    """The verdict on a build, why, the mangled names of the changed functions, the lines of those that ran, and which
    of the base's copies jump to the fork's."""

    verdict: str
    reason: str = ""
    symbols: tuple[str, ...] = ()
    seen: frozenset[str] = frozenset()
    jumps: frozenset[str] = frozenset()


def examine(branch: Branch, paths: list[str], lines: list[str], long: bool) -> Outcome:
    """Lets the last build work, with traps in the base's copies of what the fork has changed."""
    planted = tuple(sorted({name for library in branch.libraries for name in Library.read(library).planted()}))
    if not planted:
        return Outcome(INEFFECTIVE, "the fork's library has none of the changed functions")
    old = {library.path.name: library.copies(planted, paths) for library in base()}
    file = branch.folder / "old.json"
    spots = {name: [(symbol.name, symbol.start) for symbol in symbols] for name, symbols in old.items()}
    theirs = {name for library in base() for name in library.exported}
    ours = [str(library.resolve()) for library in branch.libraries]
    exported = sorted({name for library in branch.libraries for name in Library.read(library).exported} & theirs)
    file.write_text(json.dumps({"old": spots, "exported": exported, "ours": ours, "long": long}))
    done = branch.fork("run", "--", "python", str(PROBE), str(file))
    seen = frozenset(line for line in done.err.splitlines() if line.startswith(MARK)) & frozenset(lines)
    if done.status:
        return Outcome(BROKEN, done.reason, planted, seen)
    said = json.loads(done.out.splitlines()[-1])
    for what, names in (("is found before the fork's", said["unbound"]), ("ran", said["ran"])):
        if names:
            rest = f", and {len(names) - 1} more" if names[1:] else ""
            return Outcome(INEFFECTIVE, f"the base's {names[0]} {what}{rest}", planted, seen)
    return Outcome(EFFECTIVE, "", planted, seen, frozenset(said["jumps"]))


def one(branch: Branch, path: str, group: str) -> Result:
    """Changes one source."""
    done, lines = build(branch, [path])
    result = Result(group, EFFECTIVE, done.reason, round(done.seconds, 1), len(lines))
    if done.status:
        result.verdict = UNCOMPILED if re.match(r"compiling (\S+ )?failed", done.reason) else REFUSED
        return result
    outcome = examine(branch, [path], lines, long=False)
    result.verdict, result.reason, result.symbols = outcome.verdict, outcome.reason, list(outcome.symbols)
    result.ran = len(outcome.seen)
    return result


def together(branch: Branch, known: Known) -> str:
    """Changes all sources at once that are effective alone; says what came of it, and corrects the verdicts."""
    results = {path: result for path, result in known.results.items() if result.verdict == EFFECTIVE}
    done, lines = build(branch, results)
    if done.status:
        return f"Together they are not built: {done.reason}"
    outcome = examine(branch, list(results), lines, long=True)
    for path, result in results.items():
        result.ran = max(result.ran, sum(line.startswith(f"{MARK} {path} ") for line in outcome.seen))
    for path, way in led(branch, results, outcome.jumps).items():
        results[path].verdict, results[path].reason = INEFFECTIVE, f"code of the base leads to its own {way}"
    functions = sum(result.functions for result in results.values())
    end = f"{outcome.verdict} ({outcome.reason})" if outcome.reason else outcome.verdict
    return (
        f"{len(results)} sources with {functions} functions, all changed at once: {end}. "
        f"{len(outcome.seen)} of these functions ran in OpInfo's samples."
    )


def led(branch: Branch, results: Mapping[str, Result], jumps: Collection[str]) -> dict[str, str]:
    """The sources whose copies in the base can be reached by code that the fork has not replaced, with one such way.

    A copy that jumps leads to the fork's. Where the fork has a copy of the caller too, its own callers count.
    """
    ours = {name for library in branch.libraries for name in Library.read(library).symbols}
    found: dict[str, str] = {}
    for library in base():
        copies = [s for path, result in results.items() for s in library.copies(result.symbols, [path])]
        frontier = [symbol for symbol in copies if f"{symbol.name} of {library.path.name}" not in jumps]
        owner = {name: path for path, result in results.items() for name in result.symbols}
        known: set[str] = set()
        while frontier:
            known |= {symbol.name for symbol in frontier}
            again: set[str] = set()
            for callee, callers in reached(library, frontier).items():
                for caller in callers:
                    owner.setdefault(caller, owner[callee])
                    if caller not in ours:
                        found.setdefault(owner[callee], f"{callee}, from {caller}")
                    elif caller not in known and f"{caller} of {library.path.name}" not in jumps:
                        again.add(caller)
            frontier = [symbol for name in again for symbol in library.symbols[name] if symbol.kind == FUNCTION]
    return found


def table(known: Known) -> str:
    """How many sources of each group came to which verdict, and the seconds of their builds."""
    rows = []
    for group in (*GROUPS, *DEVICE, "all"):
        results = [result for result in known.results.values() if group in ("all", result.group)]
        if not results:
            continue
        counts = Counter(result.verdict for result in results)
        seconds = [result.seconds for result in results if result.verdict == EFFECTIVE] or [0.0]
        share = f"{counts[EFFECTIVE]} ({counts[EFFECTIVE] / len(results):.0%})"
        rest = [str(counts[verdict]) for verdict in VERDICTS[1:]]
        rows.append(
            [group, str(len(results)), share, *rest, f"{statistics.median(seconds):.0f}", f"{max(seconds):.0f}"]
        )
    return markdown_table(["", "sources", *VERDICTS, "median s", "longest s"], rows)


def reasons(known: Known, tree: Path) -> str:
    """Why sources were not effective, one row for each."""
    rows = [
        [f"`{path}`", result.verdict, _cell(re.sub(r" \(all of it: .*?\)", "", _plain(result.reason, tree)))]
        for path, result in sorted(known.results.items())
        if result.verdict != EFFECTIVE
    ]
    return markdown_table(["source", "", "why"], rows) if rows else "Every source of the sample was effective.\n"


def _plain(reason: str, tree: Path) -> str:
    """The same, without the place of the tree, or of the clone of it that the branch lies in."""
    return re.sub(rf"(?:{re.escape(str(tree.resolve()))}|/\S+?/checkout)(?=/)", "~/pytorch", reason)


def _cell(reason: str) -> str:
    """What fits into a table."""
    plain = " ".join(reason.replace("|", "\\|").split())
    return plain if len(plain) <= LONGEST else f"{plain[:LONGEST]} ..."


def main() -> None:
    parser = Parser(prog="python -m bench.tool.coverage", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", type=Path, help="a checkout of PyTorch, of the installed torch's release")
    parser.add_argument("--count", type=at_least(1), help="how many sources (default 76, with --cuda 12)")
    parser.add_argument("--cuda", action="store_true", help="kernels of the GPU, which need nvcc and a wheel with CUDA")
    parser.add_argument("--seed", type=at_least(0), default=31, help="which sources (default 31)")
    parser.add_argument("--minutes", type=duration, default=1e9, help="begin no other source after this time")
    parser.add_argument("--out", type=Path, default=Path("build/coverage"), help="where everything is kept")
    parser.add_argument("--only", metavar="WORD", default="", help="sources with this in their path, known or not")
    parser.add_argument("--again", action="store_true", help="sources that were not effective, too")
    parser.add_argument("--together", action="store_true", help="now all sources at once")
    parser.add_argument("--write", action="store_true", help=f"write the tables into {GUIDE.name}")
    args = parser.parse_args()
    sample = draw(args.tree, args.count or (12 if args.cuda else 76), args.seed, args.cuda)
    branch = Branch.of(args.tree, args.out)
    where = f"{branch.version} ({branch.commit}), torch {torch.__version__}, {processor()}, seed {args.seed}"
    known = Known.read(args.out / "results.json", where)
    until = time.monotonic() + 60 * args.minutes
    for path, group in sample.items():
        held = known.results.get(path)
        wanted = args.only in path if args.only else not held or (args.again and held.verdict != EFFECTIVE)
        if not wanted or time.monotonic() > until or args.together:
            continue
        known.results[path] = result = one(branch, path, group)
        known.keep()
        print(f"{result.verdict:12} {result.seconds:6.1f} s  {path}  {result.reason}", flush=True)
    said = together(branch, known) if args.together else ""
    known.keep()
    branch.reset()
    print(table(known), reasons(known, args.tree), said, sep="\n")
    if args.write:
        if missing := [path for path in sample if path not in known.results]:
            raise ForkError(f"{len(missing)} sources of the sample are not known yet, such as {missing[0]}")
        suffix = "_cuda" if args.cuda else ""
        values = {
            f"coverage{suffix}": table(known)
            + "\n"
            + textwrap.fill(f"PyTorch {where}, tool at {commit()}. {said}", 120),
            f"reasons{suffix}": reasons(known, args.tree),
        }
        GUIDE.write_text(fill(GUIDE.read_text(), values, GUIDE.name))


if __name__ == "__main__":
    sys.exit(status("bench.tool.coverage", main))
