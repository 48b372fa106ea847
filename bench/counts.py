"""`python -m bench.counts`: fills what `fork check` counted on each commit of PR 4 into its description."""

from __future__ import annotations

import json
import re
import sys

from bench.cpu.record import FOLDER, commit, here
from bench.documents import markdown_table
from fork.arguments import Parser, status
from fork.errors import ForkError
from fork.series import Series
from fork.verify.prefix import results

FILE = FOLDER / "check.json"
PR = "explicit"


def counted(said: str) -> str:
    """The numbers of pytest's last line without its time and its warnings."""
    return ", ".join(re.findall(r"\d+ (?:passed|failed|skipped|subtests passed)", said))


def table() -> str:
    """One row for each command on each commit, and where it ran."""
    kept = json.loads(FILE.read_text())
    rows = [(state, f"`{command}`", count) for state, command, count in kept["rows"]]
    return f"{markdown_table(('commit', 'test', 'result'), rows)}\n{kept['where']}\n"


def main() -> None:
    from bench.cpu import report  # which takes the table from here

    Parser(prog="python -m bench.counts", description=__doc__).parse_args()
    root = FOLDER.parents[1]
    series = Series.load(root)
    rows = []
    for one in series.prs[-1].commits:
        found = results(series, root / "build", one)
        if found is None or not all(run.passed for run in found.runs):
            raise ForkError(f"{one.name} has not passed `python -m fork check` as it is now: run that first")
        rows += [(one.name, run.command, counted(run.said)) for run in found.runs if run.command.startswith("test/")]
    where = f"{here().conditions}, torch {found.torch}, commit {commit()}." if found else ""
    FILE.write_text(json.dumps({"where": where, "rows": rows}, indent=1) + "\n")
    report.rewrite()


if __name__ == "__main__":
    sys.exit(status("bench.counts", main))
