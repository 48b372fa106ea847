"""`python -m bench.tool.fixes TREE`: fixes of bugs that PyTorch has had, from red to green on an installed wheel.

For each fix (changes.py), its test (tests/) fails on this Python's torch. Then the fix is written into a clone of the
checkout, the tool builds that branch from nothing, and the test passes on the fork. The table says how long that took.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from bench.documents import END, fill, markdown_table, wrapped
from bench.machine import ROOT, commit, processor
from bench.tool.fixes.changes import FIXES
from bench.tool.fixes.edits import Fix
from bench.tool.scratch_clone import Branch, run
from fork.arguments import Parser, status
from fork.errors import ForkError

GUIDE = ROOT / "guide/changed_sources.md"
HEAD = ("number", "what was wrong", "what it changes", "before", "build", "with the test")
OTHERS = " The others: "


def tried(branch: Branch, fix: Fix) -> list[str]:
    """The row of a fix; raises where the test does not go from red to green."""
    before = run([sys.executable, str(fix.test)])
    if not before.status:
        raise ForkError(f"{fix.test.name} passes on torch {torch.__version__}, which has this fix already")
    branch.reset()
    branch.forget()
    for edit in fix.edits:
        edit.apply(branch.checkout)
    built = branch.fork("build", *fix.options)
    if built.status:
        raise ForkError(f"{fix.name} was not built: {built.reason}")
    after = branch.fork("run", *fix.options, "--", "python", str(fix.test))
    if after.status:
        raise ForkError(f"{fix.test.name} fails on the fork, after {built.seconds:.0f} s: {after.reason}")
    died = f"signal {-before.status}" if before.status < 0 else "fails"
    took = [f"{built.seconds:.0f} s", f"{built.seconds + after.seconds:.0f} s"]
    return [f"#{fix.number}", fix.wrong, files(fix), died, *took]


def try_together(branch: Branch, fixes: Sequence[Fix]) -> int:
    """How many of these tests fail on one branch that has all the fixes."""
    branch.reset()
    for edit in (edit for fix in fixes for edit in fix.edits):
        edit.apply(branch.checkout)
    options = ("--cuda", "off", "--many", "200")
    built = branch.fork("build", *options)
    if built.status:
        raise ForkError(f"the branch of {len(fixes)} fixes was not built: {built.reason}")
    failed = 0
    for fix in fixes:
        ended = branch.fork("run", *options, "--", "python", str(fix.test))
        print(fix.name, ended.reason if ended.status else "passes", sep=": ", flush=True)
        failed += ended.status != 0
    return failed


def files(fix: Fix) -> str:
    return f"{', '.join(dict.fromkeys(Path(edit.path).name for edit in fix.edits))}: {fix.kind}"


def written(text: str, rows: Mapping[str, list[str]], where: str) -> str:
    """The guide with these rows, by the names of their fixes; of a fix without one, the row that stands there stays."""
    there = text.partition("<!--fixes-->")[2].partition(END)[0]
    lines = (line[2:-2].split(" | ") for line in there.splitlines() if line.startswith("| #"))
    standing = {cells[0]: cells for cells in lines}
    if any(f"#{fix.number}" in standing for fix in FIXES if fix.name not in rows):
        where = beside(where, " ".join(there.rpartition("|\n")[2].split()), rows)
    listed = [rows.get(fix.name) or standing.get(f"#{fix.number}") for fix in FIXES]
    table = markdown_table(HEAD, [row for row in listed if row])
    return fill(text, {"fixes": f"{table}\n{wrapped(where)}"}, GUIDE.name)


def beside(where: str, standing: str, rows: Mapping[str, list[str]]) -> str:
    """Which rows are of this run, and what the others were measured with; runs that have no row any longer go."""
    new = [f"#{fix.number}" for fix in FIXES if fix.name in rows]
    if not new:
        return standing
    runs = standing.split(OTHERS)
    last = runs.pop()  # of all that no run before it names
    earlier = [run for run in runs if not {*re.findall(r"#\d+", run)} <= {*new}]
    return OTHERS.join([f"{', '.join(new)}: {where}", *earlier, last])


def main() -> int:
    parser = Parser(prog="python -m bench.tool.fixes", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("tree", type=Path, help="a checkout of PyTorch 2.7, and torch 2.7.0 as this Python's")
    names = [fix.name for fix in FIXES]
    parser.add_argument("--only", choices=names, nargs="+", default=names, metavar="NAME", help="these of them")
    parser.add_argument("--together", action="store_true", help="all in one branch, without a row of the table")
    parser.add_argument("--out", type=Path, default=Path("build/fixes"), help="where everything is kept")
    parser.add_argument(
        "--write", action="store_true", help=f"write the table into {GUIDE.name}: of others, the rows stay"
    )
    args = parser.parse_args()
    branch = Branch.of(args.tree, args.out)
    if args.together:
        return int(try_together(branch, [fix for fix in FIXES if fix.name in args.only]) > 0)
    file = args.out / "rows.json"
    rows: dict[str, list[str]] = json.loads(file.read_text()) if file.is_file() else {}
    failed = 0
    for fix in FIXES:
        if fix.name not in args.only:
            continue
        rows.pop(fix.name, None)
        try:
            rows[fix.name] = tried(branch, fix)
            print(*rows[fix.name], sep=" | ", flush=True)
        except ForkError as error:
            failed = 1
            why = re.sub(r" \(all of it: .*?\)", "", str(error).replace(f"{branch.checkout}/", "").splitlines()[0])
            rows[fix.name] = [f"#{fix.number}", fix.wrong, files(fix), "", "", why.replace("|", "\\|")]
            print(f"bench.tool.fixes: {error}", file=sys.stderr, flush=True)
        file.write_text(json.dumps(rows, indent=1) + "\n")
    branch.reset()
    if args.write:
        where = f"PyTorch {branch.version}, torch {torch.__version__}, {processor()}, tool at {commit()}."
        GUIDE.write_text(written(GUIDE.read_text(), rows, where))
    return failed


if __name__ == "__main__":
    sys.exit(status("bench.tool.fixes", main))
